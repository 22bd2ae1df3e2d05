// The family-independent runner.
#include "models/parity.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"

namespace longship::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
constexpr std::string_view kGrad = "grad.";

bool contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool is_required(const ParityCase& c, const std::string& name) {
  return std::any_of(c.required.begin(), c.required.end(),
                     [&](const std::string& pattern) { return parity_match(pattern, name); });
}

/// Compares one pair and fills the judged measure.
ParityRow compare(const ParityCase& c, const std::string& kind, const std::string& name,
                  const at::Tensor* ours, const at::Tensor& ref) {
  ParityRow row;
  row.kind = kind;
  row.name = name;
  row.required = is_required(c, kind == "sample" ? "sample:" + name : name);
  row.produced = ours != nullptr;
  const bool grad = kind == "grad";
  const bool zero = grad && contains(c.zero_grads, name.substr(kGrad.size()));
  row.tolerance = kind == "sample" ? c.tolerance.sample
                  : zero           ? c.tolerance.zero_grads
                  : grad           ? c.tolerance.grads
                  : name == "loss" ? c.tolerance.loss
                                   : c.tolerance.outputs;
  if (ours == nullptr) return row;
  at::Tensor value = *ours;
  if (value.numel() == 1 && ref.numel() == 1) value = value.reshape(ref.sizes());
  if (value.sizes() != ref.sizes()) {
    row.note = fmt::format("shape differs: {} elements, {} expected", value.numel(), ref.numel());
    return row;
  }
  if (zero) {  // the reference holds rounding noise there: ours must be small, not equal
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

void compare_all(const ParityCase& c, const std::string& file, const Tensors& ours, bool sample,
                 ParityReport& report) {
  const std::filesystem::path path = c.folder / file;
  const Tensors expected = std::filesystem::exists(path) ? io::load_tensors(path) : Tensors{};
  for (const auto& [name, ref] : expected) {
    const auto it = ours.find(name);
    const std::string kind = sample ? "sample" : name.starts_with(kGrad) ? "grad" : "output";
    ParityRow row = compare(c, kind, name, it == ours.end() ? nullptr : &it->second, ref);
    if (row.produced || row.required) report.rows.push_back(std::move(row));
  }
  // A literal required name that the case itself lacks cannot be judged.
  for (const std::string& pattern : c.required) {
    if (pattern.starts_with("sample:") != sample ||
        pattern.find_first_of("*?") != std::string::npos)
      continue;
    const std::string name = sample ? pattern.substr(7) : pattern;
    if (expected.contains(name)) continue;
    ParityRow row;
    row.kind = sample ? "sample" : "output";
    row.name = name;
    row.required = true;
    row.produced = ours.contains(name);
    row.note = fmt::format("required, but {} does not hold it", file);
    report.rows.push_back(std::move(row));
  }
}

/// A recorded run inside a trajectory file.
struct Recorded {
  std::string label;
  ParityRecipe recipe;
  nlohmann::json steps;
};

ParityRecipe read_recipe(const nlohmann::json& r) {
  ParityRecipe out;
  out.schedule = r.value("schedule", std::string("constant"));
  out.peak_lr = r.value("peak_lr", r.value("lr", 0.0));
  out.min_lr = r.value("min_lr", r.value("decay_lr", 0.0));
  out.warmup_steps = r.value("warmup_steps", r.value("warmup", int64_t{0}));
  out.decay_steps = r.value("decay_steps", r.value("train_iters", int64_t{0}));
  if (out.decay_steps == 0 && r.contains("steps") && r["steps"].is_number_integer()) {
    out.decay_steps = r["steps"].get<int64_t>();
  }
  if (r.contains("betas")) {
    out.beta1 = r["betas"].at(0).get<double>();
    out.beta2 = r["betas"].at(1).get<double>();
  }
  out.eps = r.value("eps", 1e-8);
  out.weight_decay = r.value("weight_decay", 0.0);
  out.clip_norm = r.value("clip_grad_norm", r.value("clip", 0.0));
  return out;
}

/// The four shapes of a trajectory file.
std::vector<Recorded> read_recorded(const nlohmann::json& doc) {
  std::vector<Recorded> out;
  if (doc.contains("steps") && doc.contains("recipe")) {
    out.push_back({"", read_recipe(doc["recipe"]), doc["steps"]});
  } else if (doc.contains("trajectory")) {
    out.push_back({"", read_recipe(doc), doc["trajectory"]});
  } else if (doc.contains("documented")) {
    out.push_back({"documented", read_recipe(doc.at("recipe")), doc["documented"]});
    if (doc.contains("stress"))
      out.push_back({"stress", read_recipe(doc.at("stress_recipe")), doc["stress"]});
  } else {
    for (const auto& [label, run] : doc.items()) {
      if (run.is_object() && run.contains("steps")) {
        out.push_back({label, read_recipe(run.at("recipe")), run["steps"]});
      }
    }
  }
  const auto no_decay = doc.value("no_decay", std::vector<std::string>());
  for (Recorded& run : out) run.recipe.no_decay = no_decay;
  return out;
}

ParityRow train_row(const std::string& name, double tolerance) {
  ParityRow row;
  row.kind = "train";
  row.name = name;
  row.required = true;
  row.tolerance = tolerance;
  return row;
}

void run_recorded(const ParityCase& c, ParityAdapter& adapter, const std::string& file,
                  const std::string& description, const Recorded& run,
                  const ParityOptimizerFactory& make_optimizer, ParityReport& report) {
  const std::string prefix = run.label.empty() ? file : file + ":" + run.label;
  const std::unique_ptr<ParityOptimizer> optimizer =
      make_optimizer(adapter.begin_trajectory(file, description), run.recipe);
  int64_t step = 0;
  double worst_norm = 0;
  for (const nlohmann::json& recorded : run.steps) {
    const int64_t batch = recorded.value("batch", step % 2);
    at::Tensor loss = adapter.train_loss(batch);
    loss.backward();
    ParityRow row = train_row(fmt::format("{} step {}", prefix, step), c.tolerance.train);
    const double ours = loss.item<double>(), ref = recorded.at("loss").get<double>();
    row.produced = true;
    row.abs_error = std::isfinite(ours) ? std::abs(ours - ref) : INFINITY;
    row.rel_error = row.abs_error / std::max(std::abs(ref), 1e-6);
    row.pass = row.rel_error <= row.tolerance;
    const double lr = optimizer->lr(step);
    const double norm = optimizer->step(step);
    if (recorded.contains("lr")) {
      const double lr_ref = recorded["lr"].get<double>();
      const bool same =
          std::abs(lr - lr_ref) <= 1e-9 * std::max(std::abs(lr_ref), run.recipe.peak_lr);
      row.pass = row.pass && same;
      if (!same) row.note = fmt::format("lr {} instead of {}", lr, lr_ref);
    }
    if (recorded.contains("grad_norm")) {
      const double norm_ref = recorded["grad_norm"].get<double>();
      worst_norm = std::max(worst_norm, std::abs(norm - norm_ref) / std::max(norm_ref, 1e-6));
    }
    report.rows.push_back(std::move(row));
    ++step;
  }
  if (!report.rows.empty() && step > 0) {
    report.rows.back().note = fmt::format("gradient norms within {:.1e}", worst_norm);
  }
}

void run_trajectory(const ParityCase& c, ParityAdapter& adapter, const std::string& file,
                    const std::string& description, const ParityOptimizerFactory& make_optimizer,
                    ParityReport& report) {
  ParityRow row = train_row(file, c.tolerance.train);
  if (!std::filesystem::exists(c.folder / file)) {
    row.note = "named in case.json, but the file is missing";
    report.rows.push_back(row);
    return;
  }
  if (!make_optimizer) {
    row.note = "no optimizer was passed in";
    report.rows.push_back(row);
    return;
  }
  const nlohmann::json doc = parse_json_file(c.folder / file, {.code = ExitCode::kConfig});
  std::vector<Recorded> runs;
  try {
    runs = read_recorded(doc);
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", (c.folder / file).string(), e.what()));
  }
  if (runs.empty()) {
    row.note = "no recorded run found in the file";
    report.rows.push_back(row);
  }
  for (const Recorded& run : runs)
    run_recorded(c, adapter, file, description, run, make_optimizer, report);
}

}  // namespace

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
  ParityCase c = read_parity_case(folder);
  ParityReport report{c.family, c.name, c.folder, {}};
  std::unique_ptr<ParityAdapter> adapter;
  try {
    adapter = make_parity_adapter(c, options);
  } catch (const ConfigError& e) {
    ParityRow row;
    row.kind = "case";
    row.name = c.family + "/" + c.name;
    row.required = true;
    row.note = e.what();
    report.rows.push_back(row);
    return report;
  }
  if (options.dtype != at::kFloat && options.dtype != at::kDouble) {
    c.tolerance = adapter->low_precision_tolerance();
  } else if (!options.device.is_cpu()) {
    c.tolerance.scale(10);
  }
  compare_all(c, "expected.safetensors", adapter->forward(), false, report);
  compare_all(c, "sample.safetensors", adapter->sample(), true, report);
  for (const auto& [file, description] : c.trajectories) {
    run_trajectory(c, *adapter, file, description, optimizer, report);
  }
  return report;
}

}  // namespace longship::models
