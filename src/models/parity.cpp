// The family-independent runner: outputs, gradients, samples and what the folder holds besides.
#include "models/parity.h"

#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/parity_internal.h"

namespace longship::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
constexpr std::string_view kGrad = "grad.";
constexpr std::string_view kSample = "sample:";
constexpr const char* kNotCompared = "nothing of ours is compared with it";

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_required(const ParityCase& c, const std::string& name) {
  return std::any_of(c.required.begin(), c.required.end(),
                     [&](const std::string& pattern) { return parity_match(pattern, name); });
}

/// The bound of an output: losses and gradient norms have their own.
double output_tolerance(const ParityTolerance& t, std::string_view name) {
  const auto is = [&](std::string_view scalar) {
    return name == scalar || name.ends_with("." + std::string(scalar));
  };
  if (is("loss")) return t.loss;
  return is("grad_norm") || name.ends_with("grad_norm_real_dims") ? t.grad_norm : t.outputs;
}

/// Compares one pair and fills the judged measure.
ParityRow compare(const ParityCase& c, const std::string& kind, const std::string& name,
                  const at::Tensor* ours, const at::Tensor& ref) {
  ParityRow row;
  row.kind = kind;
  row.name = name;
  row.required = is_required(c, kind == "sample" ? std::string(kSample) + name : name);
  row.produced = ours != nullptr;
  const bool grad = kind == "grad";
  const bool zero = grad && contains(c.zero_grads, name.substr(kGrad.size()));
  row.tolerance = kind == "sample" ? c.tolerance.sample
                  : zero           ? c.tolerance.zero_grads
                  : grad           ? c.tolerance.grads
                                   : output_tolerance(c.tolerance, name);
  if (ours == nullptr) {
    row.note = kNotCompared;
    return row;
  }
  at::Tensor value = *ours;
  if (value.numel() == 1 && ref.numel() == 1) value = value.reshape(ref.sizes());
  if (value.sizes() != ref.sizes()) {
    row.note = fmt::format("shape differs: {} elements, {} expected", value.numel(), ref.numel());
    return row;
  }
  if (!ref.is_floating_point()) {
    row.tolerance = 0;
    row.abs_error = row.rel_error = parity_error(value, ref, 1.0).first;
  } else if (zero) {  // the reference holds rounding noise there: ours must be small, not equal
    row.abs_error = parity_error(value, at::Tensor(value).to(at::kCPU).mul(0), 0.0).first;
    row.rel_error = c.largest_grad > 0 ? row.abs_error / c.largest_grad : row.abs_error;
    row.note = "zero in exact arithmetic";
  } else {
    const double floor = grad ? std::max(1e-3 * c.largest_grad, 1e-12) : 1e-6;
    std::tie(row.abs_error, row.rel_error) = parity_error(value, ref, floor);
  }
  row.pass = row.rel_error <= row.tolerance;
  return row;
}

const at::Tensor* find(const Tensors& tensors, const std::string& name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

/// Gradients of ours that the reference does not have must be zero: it does not train them.
void check_untrained(const Tensors& expected, const Tensors& ours, ParityReport& report) {
  const auto is_grad = [](const auto& item) { return item.first.starts_with(kGrad); };
  if (std::none_of(expected.begin(), expected.end(), is_grad)) return;
  for (const auto& [name, value] : ours) {
    if (!name.starts_with(kGrad) || expected.contains(name)) continue;
    if (value.ne(0).any().item<bool>()) {
      report.rows.push_back(parity_fault("grad", name, "the reference has no gradient of it"));
      report.rows.back().produced = true;
    }
  }
}

void compare_all(const ParityCase& c, const std::string& file, const Tensors& expected,
                 const Tensors& ours, const std::vector<std::string>& inputs, bool sample,
                 ParityReport& report) {
  for (const auto& [name, ref] : expected) {
    const std::string full = sample ? std::string(kSample) + name : name;
    const at::Tensor* own = find(ours, name);
    if (own == nullptr && contains(inputs, full)) {
      report.left_out.push_back(fmt::format("{}: '{}' is an input", file, name));
      continue;
    }
    const std::string kind = sample ? "sample" : name.starts_with(kGrad) ? "grad" : "output";
    report.rows.push_back(compare(c, kind, name, own, ref));
  }
  if (!sample) check_untrained(expected, ours, report);
  // A literal required name that the case itself lacks cannot be judged.
  for (const std::string& pattern : c.required) {
    if (pattern.starts_with(kSample) != sample || pattern.find_first_of("*?") != std::string::npos)
      continue;
    const std::string name = sample ? pattern.substr(kSample.size()) : pattern;
    if (expected.contains(name)) continue;
    ParityRow row = parity_fault(sample ? "sample" : "output", name,
                                 fmt::format("required, but {} does not hold it", file));
    row.produced = ours.contains(name);
    report.rows.push_back(std::move(row));
  }
}

/// Numbers and lists of numbers below `doc`, by their path.
void flatten(const nlohmann::json& doc, const std::string& prefix, Tensors& numbers,
             std::vector<std::string>& others) {
  for (const auto& [key, value] : doc.items()) {
    const std::string name = prefix + key;
    if (parity_figure(key)) continue;
    const bool list = value.is_array() && !value.empty() &&
                      std::all_of(value.begin(), value.end(),
                                  [](const nlohmann::json& item) { return item.is_number(); });
    if (value.is_object()) {
      flatten(value, name + ".", numbers, others);
    } else if (value.is_number()) {
      numbers.emplace(name, at::tensor({value.get<double>()}, at::kDouble));
    } else if (list) {
      numbers.emplace(name, at::tensor(value.get<std::vector<double>>(), at::kDouble));
    } else {
      others.push_back(name);
    }
  }
}

/// expected.json: numbers by name, and lists of parameters without gradient.
void compare_json(const ParityCase& c, const Tensors& ours, ParityReport& report) {
  const std::filesystem::path path = c.folder / "expected.json";
  if (!std::filesystem::exists(path)) return;
  const nlohmann::json doc = parse_json_file(path, {.code = ExitCode::kConfig});
  Tensors numbers;
  std::vector<std::string> others;
  flatten(doc, "", numbers, others);
  for (const auto& [name, ref] : numbers) {
    report.rows.push_back(compare(c, "output", name, find(ours, name), ref));
    report.rows.back().name = "expected.json:" + name;
  }
  for (const std::string& name : others) {
    const nlohmann::json list = doc.value(name, nlohmann::json());
    const bool names =
        list.is_array() && std::all_of(list.begin(), list.end(),
                                       [](const nlohmann::json& item) { return item.is_string(); });
    if ((name != "no_grad" && name != "zero_grad") || !names) {
      report.rows.push_back(parity_fault("output", "expected.json:" + name, kNotCompared));
      continue;
    }
    ParityRow row;
    row.kind = "grad";
    row.name = "expected.json:" + name;
    row.produced = true;
    row.tolerance = c.tolerance.zero_grads;
    for (const nlohmann::json& parameter : list) {
      const at::Tensor* own = find(ours, std::string(kGrad) + parameter.get<std::string>());
      if (own == nullptr) continue;
      const double largest = own->abs().max().item<double>();
      row.abs_error = std::isfinite(largest) ? std::max(row.abs_error, largest) : INFINITY;
    }
    row.rel_error = c.largest_grad > 0 ? row.abs_error / c.largest_grad : row.abs_error;
    row.pass = row.rel_error <= row.tolerance;
    row.note = fmt::format("{} parameters", list.size());
    report.rows.push_back(std::move(row));
  }
}

/// Parameters that `zero_grads` names and of which the recording holds noise.
std::set<std::string> noisy_parameters(const ParityCase& c, const Tensors& expected) {
  std::set<std::string> out;
  for (const std::string& name : c.zero_grads) {
    const at::Tensor* grad = find(expected, std::string(kGrad) + name);
    if (grad == nullptr || grad->ne(0).any().item<bool>()) out.insert(name);
  }
  return out;
}

/// Files that nobody has read.
void check_files(const ParityCase& c, const ParityAdapter& adapter, ParityReport& report) {
  std::vector<std::string> known = adapter.own_files();
  for (const char* name :
       {"README.md", "case.json", "config.json", "weights.safetensors", "inputs.safetensors",
        "inputs.json", "expected.safetensors", "expected.json", "sample.safetensors"}) {
    known.push_back(name);
  }
  for (const auto& [file, description] : c.trajectories) {
    known.push_back(file);
    known.push_back(parity_weights_file(file));
  }
  for (const std::string& file : c.files) {
    if (!contains(known, file)) report.rows.push_back(parity_fault("file", file, kNotCompared));
  }
}

Tensors load(const ParityCase& c, const char* file) {
  const std::filesystem::path path = c.folder / file;
  return std::filesystem::exists(path) ? io::load_tensors(path) : Tensors{};
}

}  // namespace

ParityRow parity_fault(std::string kind, std::string name, std::string note) {
  ParityRow row;
  row.kind = std::move(kind);
  row.name = std::move(name);
  row.note = std::move(note);
  return row;
}

bool parity_figure(std::string_view name) {
  return name == "fp32_vs_fp64" || name.ends_with("_fp64") || name.starts_with("max_abs_") ||
         name.ends_with("_max_abs_diff");
}

BuildOptions parity_build_options(const ParityOptions& options) {
  BuildOptions out;
  out.device = options.device;
  out.dtype = options.dtype;
  out.initialise = false;
  out.fused = options.fused;
  return out;
}

ParityReport run_parity_case(const std::filesystem::path& folder, const ParityOptions& options,
                             const ParityOptimizerFactory& optimizer) {
  const ParityCase c = read_parity_case(folder);
  std::unique_ptr<ParityAdapter> adapter;
  try {
    adapter = make_parity_adapter(c, options);
  } catch (const ConfigError& e) {
    ParityReport report{c.family, c.name, c.folder, {}, {}};
    report.rows.push_back(parity_fault("case", c.family + "/" + c.name, e.what()));
    report.rows.back().required = true;
    return report;
  }
  return run_parity_case(c, *adapter, options, optimizer);
}

ParityReport run_parity_case(const ParityCase& given, ParityAdapter& adapter,
                             const ParityOptions& options,
                             const ParityOptimizerFactory& optimizer) {
  ParityCase c = given;
  ParityReport report{c.family, c.name, c.folder, {}, {}};
  c.tolerance.widest_grad_norm = adapter.widest_grad_norm();
  if (options.dtype != at::kFloat && options.dtype != at::kDouble) {
    c.tolerance = adapter.low_precision_tolerance();
    c.low_precision = true;
  } else if (!options.device.is_cpu()) {
    c.tolerance.scale(10);
  }
  const Tensors expected = load(c, "expected.safetensors");
  Tensors ours = adapter.forward();
  compare_all(c, "expected.safetensors", expected, ours, adapter.recorded_inputs(), false, report);
  const Tensors samples = adapter.sample();
  compare_all(c, "sample.safetensors", load(c, "sample.safetensors"), samples,
              adapter.recorded_inputs(), true, report);
  ours.insert(samples.begin(), samples.end());  // expected.json may have numbers of either
  compare_json(c, ours, report);
  const std::set<std::string> noisy = noisy_parameters(c, expected);
  for (const auto& [file, description] : c.trajectories) {
    run_parity_trajectory(c, adapter, file, description, optimizer, noisy, report);
  }
  check_files(c, adapter, report);
  return report;
}

}  // namespace longship::models
