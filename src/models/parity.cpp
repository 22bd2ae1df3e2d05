// The family-independent runner.
#include "models/parity.h"

#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"

namespace longship::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
constexpr std::string_view kGrad = "grad.";
constexpr double kSmallestLoss = 1e-6;  // below it, differences count as absolute ones

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

/// What a training run of ours gave at one step; the norm is that before clipping.
struct RunStep {
  double loss = 0, lr = 0, grad_norm = 0;
};

/// A training run as it can be repeated.
struct Runner {
  ParityAdapter& adapter;
  const std::string& file;
  const std::string& description;
  const Recorded& run;
  const ParityOptimizerFactory& make_optimizer;

  /// Member 0: as recorded; others: with weights and inputs moved by rounding.
  std::vector<RunStep> steps(uint64_t member) const {
    adapter.move_inputs(member);
    std::vector<ParamInfo> parameters = adapter.begin_trajectory(file, description);
    if (member > 0) {  // before the optimizer takes copies of its own
      const at::NoGradGuard no_grad;
      for (const ParamInfo& info : parameters) {
        const at::Tensor values = info.tensor.detach();
        values.copy_(parity_moved(values, member, info.name));
      }
    }
    const std::unique_ptr<ParityOptimizer> optimizer =
        make_optimizer(std::move(parameters), run.recipe);
    std::vector<RunStep> out;
    for (const nlohmann::json& recorded : run.steps) {
      const auto step = static_cast<int64_t>(out.size());
      at::Tensor loss = adapter.train_loss(recorded.value("batch", step % 2));
      loss.backward();
      const double lr = optimizer->lr(step);
      out.push_back({loss.item<double>(), lr, optimizer->step(step)});
    }
    return out;
  }
};

/// ParityRounding's spread of each step: `ours` against the members, and these among each other.
std::vector<double> rounding_spread(const Runner& runner, const std::vector<RunStep>& ours) {
  std::vector<std::vector<RunStep>> runs{ours};
  for (uint64_t member = 1; member <= ParityRounding::kMembers; ++member) {
    runs.push_back(runner.steps(member));
  }
  runner.adapter.move_inputs(0);
  std::vector<double> out;
  double largest = 0;
  for (size_t k = 0; k < ours.size(); ++k) {
    for (size_t i = 0; i < runs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const double a = runs[i][k].loss, b = runs[j][k].loss;
        const double apart = std::abs(a - b) / std::max({std::abs(a), std::abs(b), kSmallestLoss});
        largest = std::isfinite(apart) ? std::max(largest, apart) : INFINITY;
      }
    }
    out.push_back(largest);
  }
  return out;
}

/// Judges the steps that miss the case's tolerance anew. A wrong learning rate stays wrong.
void judge_by_rounding(const std::vector<double>& spread, std::span<ParityRow> rows) {
  const bool usable = spread.back() <= ParityRounding::kLargestSpread;
  for (size_t k = 0; k < rows.size(); ++k) {
    ParityRow& row = rows[k];
    if (row.rel_error <= row.tolerance) continue;
    row.rounding = ParityRow::Rounding{row.tolerance, spread[k]};
    if (!usable) {
      const std::string text = fmt::format(
          "run unusable: in all its steps rounding alone moves it by {:.1e}, more than {:.0e}",
          spread.back(), ParityRounding::kLargestSpread);
      row.note = row.note.empty() ? text : row.note + "; " + text;
      continue;
    }
    row.tolerance = std::max(row.tolerance, ParityRounding::kFactor * spread[k]);
    const bool wrong_lr = !row.note.empty();  // nothing else has been noted so far
    row.pass = row.rel_error <= row.tolerance && !wrong_lr;
  }
}

void run_recorded(const ParityCase& c, const Runner& runner, ParityReport& report) {
  const Recorded& run = runner.run;
  const std::string prefix = run.label.empty() ? runner.file : runner.file + ":" + run.label;
  const std::vector<RunStep> ours = runner.steps(0);
  std::vector<ParityRow> rows;
  double worst_norm = 0;
  bool missed = false, finite = true;
  for (const nlohmann::json& recorded : run.steps) {
    const RunStep& own = ours[rows.size()];
    ParityRow row = train_row(fmt::format("{} step {}", prefix, rows.size()), c.tolerance.train);
    const double ref = recorded.at("loss").get<double>();
    row.produced = true;
    row.abs_error = std::isfinite(own.loss) ? std::abs(own.loss - ref) : INFINITY;
    row.rel_error = row.abs_error / std::max(std::abs(ref), kSmallestLoss);
    row.pass = row.rel_error <= row.tolerance;
    missed = missed || !row.pass;
    finite = finite && std::isfinite(own.loss);
    if (recorded.contains("lr")) {
      const double lr_ref = recorded["lr"].get<double>();
      const bool same =
          std::abs(own.lr - lr_ref) <= 1e-9 * std::max(std::abs(lr_ref), run.recipe.peak_lr);
      row.pass = row.pass && same;
      if (!same) row.note = fmt::format("lr {} instead of {}", own.lr, lr_ref);
    }
    if (recorded.contains("grad_norm")) {
      const double norm_ref = recorded["grad_norm"].get<double>();
      worst_norm =
          std::max(worst_norm, std::abs(own.grad_norm - norm_ref) / std::max(norm_ref, 1e-6));
    }
    rows.push_back(std::move(row));
  }
  // Bounds of low precision lie above whatever the rule could give.
  constexpr double kWidest = ParityRounding::kFactor * ParityRounding::kLargestSpread;
  if (missed && finite && c.tolerance.train < kWidest) {
    judge_by_rounding(rounding_spread(runner, ours), rows);
  }
  if (!rows.empty()) {
    std::string& note = rows.back().note;
    note += fmt::format("{}gradient norms within {:.1e}", note.empty() ? "" : "; ", worst_norm);
  }
  for (ParityRow& row : rows) report.rows.push_back(std::move(row));
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
  for (const Recorded& run : runs) {
    run_recorded(c, {adapter, file, description, run, make_optimizer}, report);
  }
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
  const ParityCase c = read_parity_case(folder);
  std::unique_ptr<ParityAdapter> adapter;
  try {
    adapter = make_parity_adapter(c, options);
  } catch (const ConfigError& e) {
    ParityReport report{c.family, c.name, c.folder, {}};
    ParityRow row;
    row.kind = "case";
    row.name = c.family + "/" + c.name;
    row.required = true;
    row.note = e.what();
    report.rows.push_back(row);
    return report;
  }
  return run_parity_case(c, *adapter, options, optimizer);
}

ParityReport run_parity_case(const ParityCase& given, ParityAdapter& adapter,
                             const ParityOptions& options,
                             const ParityOptimizerFactory& optimizer) {
  ParityCase c = given;
  ParityReport report{c.family, c.name, c.folder, {}};
  if (options.dtype != at::kFloat && options.dtype != at::kDouble) {
    c.tolerance = adapter.low_precision_tolerance();
  } else if (!options.device.is_cpu()) {
    c.tolerance.scale(10);
  }
  compare_all(c, "expected.safetensors", adapter.forward(), false, report);
  compare_all(c, "sample.safetensors", adapter.sample(), true, report);
  for (const auto& [file, description] : c.trajectories) {
    run_trajectory(c, adapter, file, description, optimizer, report);
  }
  return report;
}

}  // namespace longship::models
