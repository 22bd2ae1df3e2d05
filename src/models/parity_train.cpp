// Recorded training runs: losses, learning rates and gradient norms of every step, and weights.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/json.h"
#include "io/tensor_io.h"
#include "models/parity_internal.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

constexpr double kSmallestLoss = 1e-6;  // below it, differences count as absolute ones

/// What a recording says about one parameter behind some step of a run.
struct RecordedWeight {
  std::string row;        // name in the report
  std::string parameter;  // public name
  int64_t after = 0;      // steps; -1: all
  /// Whole: the values, flat. Else {sum, l2 norm, first values}. fp64.
  bool whole = false;
  at::Tensor ref;
};

/// A recorded run inside a trajectory file.
struct Recorded {
  std::string label;
  ParityRecipe recipe;
  nlohmann::json steps;
  std::vector<RecordedWeight> weights;
};

/// The number of steps that `digits` writes.
std::optional<int64_t> step_count(std::string_view digits) {
  int64_t out = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return out;
}

bool known(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Reads a recipe; a number in it that nobody reads is a fault.
ParityRecipe read_recipe(const nlohmann::json& r, const std::string& where, ParityReport& report) {
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
  for (const auto& [key, value] : r.items()) {
    const bool read = known(key, {"peak_lr", "lr", "min_lr", "decay_lr", "warmup_steps", "warmup",
                                  "decay_steps", "train_iters", "steps", "betas", "eps",
                                  "weight_decay", "clip_grad_norm", "clip", "no_decay"});
    if (read || value.is_string() || value.is_object() || parity_figure(key)) continue;
    if (key == "trajectory") continue;  // of a document that is its own recipe
    report.rows.push_back(parity_fault("train", where + "." + key, "nobody reads this setting"));
  }
  return out;
}

/// {sum, l2, first values} of each parameter, as `{"sum":, "l2":, "first": []}` or `[sum, l2]`.
void read_summaries(const nlohmann::json& doc, const std::string& where, int64_t after,
                    Recorded& run) {
  for (const auto& [parameter, value] : doc.items()) {
    std::vector<double> numbers;
    if (value.is_array()) {
      numbers = value.get<std::vector<double>>();
      LS_CHECK(numbers.size() >= 2, ConfigError, "{}: '{}' must be [sum, l2], not {}", where,
               parameter, value.dump());
    } else {
      LS_CHECK(value.is_object() && value.size() == 2 + value.count("first"), ConfigError,
               "{}: '{}' must be {{sum, l2, first}} or [sum, l2], not {}", where, parameter,
               value.dump());
      numbers = {value.at("sum").get<double>(), value.at("l2").get<double>()};
      for (const nlohmann::json& one : value.value("first", nlohmann::json::array())) {
        numbers.push_back(one.get<double>());
      }
    }
    run.weights.push_back({fmt::format("{} {}", where, parameter), parameter, after, false,
                           at::tensor(numbers, at::kDouble)});
  }
}

/// The four shapes of a trajectory file. What is in it and of none of them is a fault.
std::vector<Recorded> read_recorded(const nlohmann::json& doc, const std::string& file,
                                    ParityReport& report) {
  std::vector<Recorded> out;
  std::vector<std::string> read{"note", "recipe", "no_decay"};
  const auto recipe = [&](const nlohmann::json& r, const std::string& key) {
    return read_recipe(r, key.empty() ? file : file + ":" + key, report);
  };
  if (doc.contains("steps") && doc.contains("recipe")) {
    out.push_back({"", recipe(doc["recipe"], "recipe"), doc["steps"], {}});
    read.emplace_back("steps");
    const std::string_view prefix = "sum_and_l2_after";
    for (const auto& [key, value] : doc.items()) {
      if (!key.starts_with(prefix)) continue;
      const auto after = step_count(std::string_view(key).substr(prefix.size()));
      if (!after) continue;
      read_summaries(value, file + ":" + key, *after, out.back());
      read.push_back(key);
    }
  } else if (doc.contains("trajectory")) {
    out.push_back({"", recipe(doc, ""), doc["trajectory"], {}});
    for (const auto& [key, value] : doc.items()) {
      if (!value.is_object()) read.push_back(key);
    }
  } else if (doc.contains("documented")) {
    out.push_back({"documented", recipe(doc.at("recipe"), "recipe"), doc["documented"], {}});
    if (doc.contains("stress")) {
      out.push_back(
          {"stress", recipe(doc.at("stress_recipe"), "stress_recipe"), doc["stress"], {}});
    }
    read.insert(read.end(), {"documented", "stress", "stress_recipe"});
    for (Recorded& run : out) {
      const std::string key = run.label + "_final";
      if (!doc.contains(key)) continue;
      read_summaries(doc[key], file + ":" + key, -1, run);
      read.push_back(key);
    }
  } else {
    for (const auto& [label, run] : doc.items()) {
      if (run.is_object() && run.contains("steps")) {
        out.push_back({label, recipe(run.at("recipe"), label), run["steps"], {}});
        read.push_back(label);
      }
    }
  }
  const auto no_decay = doc.value("no_decay", std::vector<std::string>());
  for (Recorded& run : out) run.recipe.no_decay = no_decay;
  for (const auto& [key, value] : doc.items()) {
    const bool seen = std::find(read.begin(), read.end(), key) != read.end();
    if (seen || parity_figure(key)) continue;
    report.rows.push_back(
        parity_fault("train", file + ":" + key, "nothing of ours is compared with it"));
  }
  return out;
}

/// Weights "after<N>.<parameter>" of the file beside a trajectory, for its only run.
void read_weights_file(const ParityCase& c, const std::string& file, std::vector<Recorded>& runs,
                       ParityReport& report) {
  const std::string name = parity_weights_file(file);
  if (!std::filesystem::exists(c.folder / name)) return;
  for (const auto& [key, value] : io::load_tensors(c.folder / name)) {
    const std::string_view prefix = "after";
    const size_t dot = key.find('.');
    std::optional<int64_t> after;
    if (key.starts_with(prefix) && dot != std::string::npos) {
      after = step_count(std::string_view(key).substr(prefix.size(), dot - prefix.size()));
    }
    if (!after || runs.size() != 1) {
      report.rows.push_back(
          parity_fault("train", name + ":" + key, "nothing of ours is compared with it"));
      continue;
    }
    runs.front().weights.push_back(
        {name + ":" + key, key.substr(dot + 1), *after, true, value.to(at::kDouble).flatten()});
  }
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

/// The steps of a run, and what it has for each of Recorded::weights, undefined for no such weight.
struct RunResult {
  std::vector<RunStep> steps;
  std::vector<at::Tensor> weights;
};

/// `value` in the form of the recording: fp64, on the host.
at::Tensor measure(const at::Tensor& value, const RecordedWeight& recorded) {
  const at::Tensor flat = value.detach().to(at::kCPU, at::kDouble).flatten();
  if (recorded.whole) return flat.clone();
  const int64_t first = std::min(recorded.ref.numel() - 2, flat.numel());
  return at::cat({at::sum(flat).reshape({1}), at::linalg_vector_norm(flat).reshape({1}),
                  flat.narrow(0, 0, std::max<int64_t>(first, 0))});
}

/// A training run as it can be repeated.
struct Runner {
  ParityAdapter& adapter;
  const std::string& file;
  const std::string& description;
  const Recorded& run;
  const ParityOptimizerFactory& make_optimizer;

  /// Member 0: as recorded; others: with weights and inputs moved by rounding.
  RunResult repeat(uint64_t member) const {
    adapter.move_inputs(member);
    const std::vector<ParamInfo> parameters = adapter.begin_trajectory(file, description);
    if (member > 0) {  // before the optimizer takes copies of its own
      const at::NoGradGuard no_grad;
      for (const ParamInfo& info : parameters) {
        const at::Tensor values = info.tensor.detach();
        values.copy_(parity_moved(values, member, info.name));
      }
    }
    const std::unique_ptr<ParityOptimizer> optimizer = make_optimizer(parameters, run.recipe);
    RunResult out;
    out.weights.resize(run.weights.size());
    const auto total = static_cast<int64_t>(run.steps.size());
    for (const nlohmann::json& recorded : run.steps) {
      const auto step = static_cast<int64_t>(out.steps.size());
      LS_CHECK(recorded.value("step", step) == step, ConfigError, "{}: entry {} is step {}", file,
               step, recorded["step"].dump());
      at::Tensor loss = adapter.train_loss(recorded.value("batch", step % 2));
      loss.backward();
      const double lr = optimizer->lr(step);
      out.steps.push_back({loss.item<double>(), lr, optimizer->step(step)});
      for (size_t i = 0; i < run.weights.size(); ++i) {
        const RecordedWeight& wanted = run.weights[i];
        if ((wanted.after < 0 ? total : wanted.after) != step + 1) continue;
        const at::Tensor value = weight(parameters, wanted.parameter);
        if (value.defined()) out.weights[i] = measure(value, wanted);
      }
    }
    return out;
  }

  at::Tensor weight(const std::vector<ParamInfo>& parameters, const std::string& name) const {
    for (const ParamInfo& info : parameters) {
      if (info.name == name) return info.tensor;
    }
    return adapter.other_weight(name);
  }
};

double apart(double a, double b, double scale) {
  const double distance = std::abs(a - b) / std::max(std::abs(scale), kSmallestLoss);
  return std::isfinite(distance) ? distance : INFINITY;
}

/// {absolute, relative} distance of two measures of a weight. Whole weights: by the error measure.
/// Summaries: the largest of the errors of the sum, of the norm, and of the first values as one
/// tensor. A sum may cancel to nothing, so it counts against the norm where that is larger.
std::pair<double, double> weight_error(const at::Tensor& ours, const at::Tensor& ref, bool whole) {
  if (whole) return parity_error(ours, ref, kSmallestLoss);
  const double norm = std::max(ref[1].item<double>(), kSmallestLoss);
  std::pair<double, double> worst{0, 0};
  const auto add = [&](int64_t first, int64_t count, double floor) {
    const auto [absolute, relative] =
        parity_error(ours.narrow(0, first, count), ref.narrow(0, first, count), floor);
    worst = {std::max(worst.first, absolute), std::max(worst.second, relative)};
  };
  add(0, 1, norm);
  add(1, 1, kSmallestLoss);
  add(2, ref.size(0) - 2, kSmallestLoss);
  return worst;
}

/// ParityRounding's spreads: of the losses and norms at steps <= k, and of each weight, which has
/// at least the median of all: five runs say little about a few numbers alone.
struct Spreads {
  std::vector<double> loss, grad_norm, weights;
};

/// `ours` against the members, and these among each other.
Spreads rounding_spreads(const Runner& runner, const RunResult& ours) {
  std::vector<RunResult> runs{ours};
  for (uint64_t member = 1; member <= ParityRounding::kMembers; ++member) {
    runs.push_back(runner.repeat(member));
  }
  runner.adapter.move_inputs(0);
  const auto over_pairs = [&](double so_far, const auto& distance) {
    for (size_t i = 0; i < runs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) so_far = std::max(so_far, distance(runs[i], runs[j]));
    }
    return so_far;
  };
  const auto running = [&](double RunStep::*field) {
    std::vector<double> out;
    for (size_t k = 0; k < ours.steps.size(); ++k) {
      out.push_back(over_pairs(out.empty() ? 0 : out.back(), [&](const auto& x, const auto& y) {
        const double a = x.steps[k].*field, b = y.steps[k].*field;
        return apart(a, b, std::max(std::abs(a), std::abs(b)));
      }));
    }
    return out;
  };
  Spreads out{running(&RunStep::loss), running(&RunStep::grad_norm), {}};
  for (size_t w = 0; w < ours.weights.size(); ++w) {
    out.weights.push_back(over_pairs(0.0, [&](const auto& x, const auto& y) {
      if (!x.weights[w].defined() || !y.weights[w].defined()) return 0.0;
      return weight_error(x.weights[w], y.weights[w], runner.run.weights[w].whole).second;
    }));
  }
  std::vector<double> sorted = out.weights;
  std::sort(sorted.begin(), sorted.end());
  for (double& spread : out.weights) spread = std::max(spread, sorted[sorted.size() / 2]);
  return out;
}

/// Rows of a run, in the order of the recording.
struct RunRows {
  std::vector<ParityRow> losses, norms, weights;

  template <class F>
  void each(const F& f) {
    for (auto* rows : {&losses, &norms, &weights}) f(*rows);
  }
  bool missed() {
    bool out = false;
    each([&](std::vector<ParityRow>& rows) {
      for (const ParityRow& row : rows) out = out || (row.produced && !row.pass);
    });
    return out;
  }
};

/// Judges the rows that miss the case's tolerance anew, by a bound of at most `widest`. A wrong
/// learning rate stays wrong.
void judge_by_rounding(const std::vector<double>& spread, double of_run, double widest,
                       std::vector<ParityRow>& rows) {
  for (size_t k = 0; k < rows.size(); ++k) {
    ParityRow& row = rows[k];
    if (!row.produced || row.rel_error <= row.tolerance) continue;
    row.rounding = ParityRow::Rounding{row.tolerance, spread[k]};
    if (of_run > ParityRounding::kLargestSpread || !std::isfinite(spread[k])) {
      const std::string text = fmt::format(
          "run unusable: in all its steps rounding alone moves it by {:.1e}, more than {:.0e}",
          of_run, ParityRounding::kLargestSpread);
      row.note = row.note.empty() ? text : row.note + "; " + text;
      continue;
    }
    row.tolerance = std::max(row.tolerance, std::min(ParityRounding::kFactor * spread[k], widest));
    const bool wrong_lr = !row.note.empty();  // nothing else has been noted so far
    row.pass = row.rel_error <= row.tolerance && !wrong_lr;
  }
}

/// One row for a scalar of a step; its error is relative to `ref`, or to `scale` where that is
/// more.
ParityRow step_row(const std::string& name, double tolerance, double ours, double ref,
                   double scale = kSmallestLoss) {
  ParityRow row = train_row(name, tolerance);
  row.produced = true;
  row.abs_error = std::isfinite(ours) ? std::abs(ours - ref) : INFINITY;
  row.rel_error = row.abs_error / std::max(std::abs(ref), scale);
  row.pass = row.rel_error <= row.tolerance;
  return row;
}

RunRows step_rows(const ParityCase& c, const Recorded& run, const std::string& prefix,
                  const RunResult& ours, ParityReport& report) {
  RunRows rows;
  std::set<std::string> unknown;
  double norm_scale = kSmallestLoss;
  for (const nlohmann::json& recorded : run.steps) {
    if (c.low_precision) norm_scale = std::max(norm_scale, recorded.value("grad_norm", 0.0));
  }
  for (const nlohmann::json& recorded : run.steps) {
    const size_t step = rows.losses.size();
    const RunStep& own = ours.steps[step];
    const std::string name = fmt::format("{} step {}", prefix, step);
    ParityRow row = step_row(name, c.tolerance.train, own.loss, recorded.at("loss").get<double>());
    if (recorded.contains("lr")) {
      const double lr_ref = recorded["lr"].get<double>();
      const bool same =
          std::abs(own.lr - lr_ref) <= 1e-9 * std::max(std::abs(lr_ref), run.recipe.peak_lr);
      row.pass = row.pass && same;
      if (!same) row.note = fmt::format("lr {} instead of {}", own.lr, lr_ref);
    }
    rows.losses.push_back(std::move(row));
    if (recorded.contains("grad_norm")) {
      rows.norms.push_back(step_row(name + " grad_norm", c.tolerance.grad_norm, own.grad_norm,
                                    recorded["grad_norm"].get<double>(), norm_scale));
    } else {
      rows.norms.push_back({});  // keeps the place of the step
    }
    for (const auto& [key, value] : recorded.items()) {
      if (!known(key, {"step", "batch", "lr", "loss", "grad_norm"}) && !parity_figure(key)) {
        unknown.insert(key);
      }
    }
  }
  for (const std::string& key : unknown) {
    report.rows.push_back(
        parity_fault("train", prefix + " step *." + key, "nothing of ours is compared with it"));
  }
  return rows;
}

void weight_rows(const ParityCase& c, const Recorded& run, const RunResult& ours, RunRows& rows) {
  for (size_t i = 0; i < run.weights.size(); ++i) {
    const RecordedWeight& recorded = run.weights[i];
    ParityRow row = train_row(recorded.row, c.tolerance.weights);
    const at::Tensor& own = ours.weights[i];
    row.produced = own.defined();
    if (row.produced && own.sizes() != recorded.ref.sizes()) {
      row.note =
          fmt::format("shape differs: {} numbers, {} expected", own.numel(), recorded.ref.numel());
      row.abs_error = row.rel_error = INFINITY;
    } else if (row.produced) {
      std::tie(row.abs_error, row.rel_error) = weight_error(own, recorded.ref, recorded.whole);
      row.pass = row.rel_error <= row.tolerance;
    }
    rows.weights.push_back(std::move(row));
  }
}

void run_recorded(const ParityCase& c, const Runner& runner, ParityReport& report) {
  const Recorded& run = runner.run;
  const std::string prefix = run.label.empty() ? runner.file : runner.file + ":" + run.label;
  const RunResult ours = runner.repeat(0);
  RunRows rows = step_rows(c, run, prefix, ours, report);
  weight_rows(c, run, ours, rows);
  const bool finite = std::all_of(ours.steps.begin(), ours.steps.end(),
                                  [](const RunStep& step) { return std::isfinite(step.loss); });
  // Bounds of low precision lie above whatever the rule could give.
  if (rows.missed() && finite && !c.low_precision) {
    const Spreads spreads = rounding_spreads(runner, ours);
    const double of_run = spreads.loss.back();
    judge_by_rounding(spreads.loss, of_run, INFINITY, rows.losses);
    judge_by_rounding(spreads.grad_norm, of_run, c.tolerance.widest_grad_norm, rows.norms);
    judge_by_rounding(spreads.weights, of_run, INFINITY, rows.weights);
  }
  rows.each([&](std::vector<ParityRow>& own) {
    for (ParityRow& row : own) {
      if (!row.name.empty()) report.rows.push_back(std::move(row));
    }
  });
}

/// Takes the weights of `noisy` parameters out of a run.
void leave_out(const std::set<std::string>& noisy, Recorded& run, ParityReport& report) {
  std::erase_if(run.weights, [&](const RecordedWeight& recorded) {
    if (!noisy.contains(recorded.parameter)) return false;
    report.left_out.push_back(recorded.row + ": its gradient is zero in exact arithmetic");
    return true;
  });
}

}  // namespace

std::string parity_weights_file(const std::string& trajectory) {
  return std::filesystem::path(trajectory).stem().string() + ".safetensors";
}

void run_parity_trajectory(const ParityCase& c, ParityAdapter& adapter, const std::string& file,
                           const std::string& description,
                           const ParityOptimizerFactory& make_optimizer,
                           const std::set<std::string>& noisy, ParityReport& report) {
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
    runs = read_recorded(doc, file, report);
    read_weights_file(c, file, runs, report);
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(fmt::format("{}: {}", (c.folder / file).string(), e.what()));
  }
  if (runs.empty()) {
    row.note = "no recorded run found in the file";
    report.rows.push_back(row);
  }
  for (Recorded& run : runs) {
    leave_out(noisy, run, report);
    run_recorded(c, {adapter, file, description, run, make_optimizer}, report);
  }
}

}  // namespace longship::models
