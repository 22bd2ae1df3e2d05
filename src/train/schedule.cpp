#include "train/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "base/error.h"

namespace longship::train {
namespace {

constexpr double kPi = std::numbers::pi;

// Fields each style reads beside its own formula's constants.
const std::map<std::string, std::set<std::string>>& used_fields() {
  static const std::map<std::string, std::set<std::string>> table = {
      {"constant", {}},
      {"constant_with_warmup", {"warmup_steps"}},
      {"linear", {"warmup_steps", "decay_steps"}},
      {"cosine", {"warmup_steps", "decay_steps"}},
      {"cosine_with_restarts", {"warmup_steps", "decay_steps", "num_cycles"}},
      {"polynomial", {"warmup_steps", "decay_steps", "end_lr", "power"}},
      {"inverse_sqrt", {"warmup_steps", "decay_steps"}},
      {"cosine_with_min_lr", {"warmup_steps", "decay_steps", "min_lr"}},
      {"cosine_warmup_with_min_lr", {"warmup_steps", "decay_steps", "min_lr"}},
      {"lambda_linear", {"warmup_steps", "f_max", "f_min", "f_start", "cycle_steps"}},
      {"openpi_cosine", {"warmup_steps", "decay_steps", "min_lr"}},
      {"lerobot_cosine", {"warmup_steps", "decay_steps", "min_lr"}},
      {"megatron_constant", {"warmup_steps", "init_lr"}},
      {"megatron_linear", {"warmup_steps", "decay_steps", "init_lr", "min_lr"}},
      {"megatron_cosine", {"warmup_steps", "decay_steps", "init_lr", "min_lr"}},
      {"megatron_inverse_sqrt", {"warmup_steps", "decay_steps", "init_lr", "min_lr"}},
      {"megatron_wsd",
       {"warmup_steps", "decay_steps", "init_lr", "min_lr", "wsd_decay_steps", "wsd_style"}},
  };
  return table;
}

double warmup_ratio(int64_t s, int64_t warmup) {
  return static_cast<double>(s) / static_cast<double>(std::max<int64_t>(1, warmup));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"constant",
                                                 "constant_with_warmup",
                                                 "linear",
                                                 "cosine",
                                                 "cosine_with_restarts",
                                                 "polynomial",
                                                 "inverse_sqrt",
                                                 "cosine_with_min_lr",
                                                 "cosine_warmup_with_min_lr",
                                                 "lambda_linear",
                                                 "openpi_cosine",
                                                 "lerobot_cosine",
                                                 "megatron_constant",
                                                 "megatron_linear",
                                                 "megatron_cosine",
                                                 "megatron_inverse_sqrt",
                                                 "megatron_wsd"};
  return names;
}

void ScheduleConfig::reflect(config::Visitor& visitor) {
  visitor.choice("name", name, schedule_names(),
                 {.doc = "Shape of the learning rate over the updates; a parameter that the shape "
                         "does not read must stay null"});
  visitor.field("warmup_steps", warmup_steps,
                {.doc = "Updates of the linear warm-up; null: 0", .unit = "updates", .min = 0});
  visitor.field("decay_steps", decay_steps,
                {.doc = "Update at which the decay ends, counted from 0; null: train.steps",
                 .unit = "updates",
                 .min = 1});
  visitor.field("min_lr", min_lr, {.doc = "Learning rate at the end of the decay", .min = 0});
  visitor.field("end_lr", end_lr,
                {.doc = "Learning rate at the end of polynomial; null: 1e-7", .min = 0});
  visitor.field("power", power, {.doc = "Power of polynomial; null: 1", .min = 0});
  visitor.field("num_cycles", num_cycles,
                {.doc = "Cosines of cosine_with_restarts; null: 1", .min = 0});
  visitor.field("f_max", f_max,
                {.doc = "Factor of lambda_linear after the warm-up; null: 0.4", .min = 0});
  visitor.field("f_min", f_min,
                {.doc = "Factor of lambda_linear at the end of a cycle; null: 0", .min = 0});
  visitor.field("f_start", f_start,
                {.doc = "Factor of lambda_linear at the start of a cycle; null: 0", .min = 0});
  visitor.field(
      "cycle_steps", cycle_steps,
      {.doc = "Length of a lambda_linear cycle; null: 10000", .unit = "updates", .min = 1});
  visitor.field(
      "init_lr", init_lr,
      {.doc = "Learning rate before the warm-up of the megatron styles; null: 0", .min = 0});
  visitor.field("wsd_decay_steps", wsd_decay_steps,
                {.doc = "Updates of the final decay of megatron_wsd", .unit = "updates", .min = 1});
  visitor.field(
      "wsd_style", wsd_style,
      {.doc = "Curve of megatron_wsd's final decay: linear, cosine, exponential or minus_sqrt"});
  visitor.choice(
      "beyond_end", beyond_end, {"hold", "follow"},
      {.doc = "After decay_steps: hold the value reached, or follow the formula on as the "
              "reference programs do"});
}

Schedule::Schedule(const ScheduleConfig& config, double base_lr, int64_t total_steps)
    : c_(config), base_lr_(base_lr), total_steps_(total_steps) {
  const auto entry = used_fields().find(c_.name);
  LS_CHECK(entry != used_fields().end(), ConfigError,
           "optim.schedule.name: there is no schedule '{}'; known: {}", c_.name,
           fmt::join(schedule_names(), ", "));
  check_used_fields(config);
  const std::set<std::string>& used = entry->second;
  warmup_ = c_.warmup_steps.value_or(0);
  decay_ = c_.decay_steps.value_or(total_steps);
  depends_on_total_steps_ =
      (used.contains("decay_steps") && !c_.decay_steps) || c_.name == "lerobot_cosine";
  const bool decays = used.contains("decay_steps");
  LS_CHECK(!decays || decay_ >= 1, ConfigError,
           "optim.schedule.decay_steps: {} gives no decay; it must be at least 1", decay_);
  LS_CHECK(
      !decays || warmup_ <= decay_, ConfigError,
      "optim.schedule.warmup_steps: {} is more than the {} updates of the whole schedule "
      "(optim.schedule.decay_steps, or train.steps when that is null); make the warm-up shorter",
      warmup_, decay_);
  if (used.contains("min_lr")) {
    LS_CHECK(c_.min_lr.has_value(), ConfigError,
             "optim.schedule.min_lr: required by the schedule '{}' (the learning rate at the end)",
             c_.name);
    LS_CHECK(
        *c_.min_lr <= base_lr_, ConfigError,
        "optim.schedule.min_lr: {} is above optim.lr {}; the end of a decay cannot lie above its "
        "start",
        *c_.min_lr, base_lr_);
  }
  if (c_.name == "polynomial") {
    LS_CHECK(c_.end_lr.value_or(1e-7) < base_lr_, ConfigError,
             "optim.schedule.end_lr: {} must be below optim.lr {}", c_.end_lr.value_or(1e-7),
             base_lr_);
  }
  if (c_.name == "lambda_linear") {
    LS_CHECK(warmup_ < c_.cycle_steps.value_or(10000), ConfigError,
             "optim.schedule.warmup_steps: {} must be below cycle_steps {}", warmup_,
             c_.cycle_steps.value_or(10000));
  }
  if (c_.name == "megatron_wsd") {
    static const std::set<std::string> curves = {"linear", "cosine", "exponential", "minus_sqrt"};
    LS_CHECK(c_.wsd_decay_steps.has_value() && c_.wsd_style.has_value(), ConfigError,
             "optim.schedule: megatron_wsd needs wsd_decay_steps and wsd_style");
    LS_CHECK(curves.contains(*c_.wsd_style), ConfigError,
             "optim.schedule.wsd_style: '{}' is none of linear, cosine, exponential, minus_sqrt",
             *c_.wsd_style);
  }
}

void Schedule::check_used_fields(const ScheduleConfig& config) const {
  const std::set<std::string>& used = used_fields().at(config.name);
  std::vector<std::string> unused;
  const auto check = [&](const char* key, bool is_set) {
    if (is_set && !used.contains(key)) unused.emplace_back(key);
  };
  check("warmup_steps", config.warmup_steps.has_value());
  check("decay_steps", config.decay_steps.has_value());
  check("min_lr", config.min_lr.has_value());
  check("end_lr", config.end_lr.has_value());
  check("power", config.power.has_value());
  check("num_cycles", config.num_cycles.has_value());
  check("f_max", config.f_max.has_value());
  check("f_min", config.f_min.has_value());
  check("f_start", config.f_start.has_value());
  check("cycle_steps", config.cycle_steps.has_value());
  check("init_lr", config.init_lr.has_value());
  check("wsd_decay_steps", config.wsd_decay_steps.has_value());
  check("wsd_style", config.wsd_style.has_value());
  LS_CHECK(unused.empty(), ConfigError,
           "optim.schedule: '{}' does not read {}; remove it, or choose a schedule that does ('{}' "
           "reads: {})",
           config.name, fmt::join(unused, ", "), config.name,
           used.empty() ? "nothing" : fmt::format("{}", fmt::join(used, ", ")));
}

double Schedule::lr(int64_t s) const {
  const bool ends = used_fields().at(c_.name).contains("decay_steps");
  if (ends && c_.beyond_end == "hold") s = std::min(s, decay_);
  if (c_.name == "openpi_cosine") return openpi(s);
  if (c_.name.starts_with("megatron_")) return megatron(s);
  if (c_.name == "lambda_linear") return base_lr_ * lambda_linear_factor(s);
  if (c_.name == "lerobot_cosine") return base_lr_ * lerobot_factor(s);
  return base_lr_ * factor(s);
}

// The transformers schedulers; s, w, T as in their sources.
double Schedule::factor(int64_t s) const {
  const std::string& name = c_.name;
  if (name == "constant") return 1.0;
  const double span = static_cast<double>(std::max<int64_t>(1, decay_ - warmup_));
  const double q = static_cast<double>(s - warmup_) / span;
  const double rate = c_.min_lr.value_or(0.0) / base_lr_;
  if (name == "cosine_warmup_with_min_lr") {
    if (s < warmup_) return (static_cast<double>(s) + 1.0) / static_cast<double>(warmup_);
    const double q1 = (static_cast<double>(s - warmup_) + 1.0) / span;
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * q1)) * (1.0 - rate) + rate);
  }
  if (s < warmup_) return warmup_ratio(s, warmup_);
  if (name == "constant_with_warmup") return 1.0;
  if (name == "linear") return std::max(0.0, static_cast<double>(decay_ - s) / span);
  if (name == "cosine") return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * q)));
  if (name == "cosine_with_restarts") {
    if (q >= 1.0) return 0.0;
    const double phase = std::fmod(c_.num_cycles.value_or(1.0) * q, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * phase)));
  }
  if (name == "polynomial") {
    const double end = c_.end_lr.value_or(1e-7);
    if (s > decay_ || decay_ == warmup_) return end / base_lr_;
    const double remaining =
        1.0 - static_cast<double>(s - warmup_) / static_cast<double>(decay_ - warmup_);
    return ((base_lr_ - end) * std::pow(remaining, c_.power.value_or(1.0)) + end) / base_lr_;
  }
  if (name == "inverse_sqrt") {
    const int64_t timescale = warmup_ > 0 ? warmup_ : 10000;
    const int64_t shift = timescale - warmup_;
    return 1.0 / std::sqrt(static_cast<double>(s + shift) / static_cast<double>(timescale));
  }
  if (name == "cosine_with_min_lr") {
    return std::max(0.0, 0.5 * (1.0 + std::cos(kPi * q)) * (1.0 - rate) + rate);
  }
  throw InternalError(fmt::format("schedule '{}' has no formula", name));
}

double Schedule::lambda_linear_factor(int64_t s) const {
  const int64_t cycle = c_.cycle_steps.value_or(10000);
  const int64_t n = s == 0 ? 0 : (s - 1) % cycle + 1;
  const double f_max = c_.f_max.value_or(0.4);
  const double f_min = c_.f_min.value_or(0.0);
  const double f_start = c_.f_start.value_or(0.0);
  if (n < warmup_) {
    return (f_max - f_start) / static_cast<double>(warmup_) * static_cast<double>(n) + f_start;
  }
  return f_min +
         (f_max - f_min) * static_cast<double>(cycle - n) / static_cast<double>(cycle - warmup_);
}

double Schedule::openpi(int64_t s) const {
  const double end = *c_.min_lr;
  if (s < warmup_) {
    const double first = base_lr_ / static_cast<double>(warmup_ + 1);
    return first + (base_lr_ - first) * static_cast<double>(s) / static_cast<double>(warmup_);
  }
  const double q = std::min(1.0, static_cast<double>(s - warmup_) /
                                     static_cast<double>(std::max<int64_t>(1, decay_ - warmup_)));
  const double cosine = 0.5 * (1.0 + std::cos(kPi * q));
  return end + (base_lr_ - end) * cosine;
}

// lerobot shrinks warm-up and decay when the run is shorter than the decay, and its cosine counts
// from step 0.
double Schedule::lerobot_factor(int64_t s) const {
  int64_t warmup = warmup_;
  int64_t decay = decay_;
  if (total_steps_ < decay_) {
    const double scale = static_cast<double>(total_steps_) / static_cast<double>(decay_);
    warmup = static_cast<int64_t>(static_cast<double>(warmup_) * scale);
    decay = total_steps_;
  }
  if (s < warmup) {
    const double first = 1.0 / static_cast<double>(warmup + 1);
    if (s <= 0) return first;
    const double rest = 1.0 - static_cast<double>(s) / static_cast<double>(warmup);
    return (first - 1.0) * rest + 1.0;
  }
  const double at = static_cast<double>(std::min(s, decay));
  const double cosine = 0.5 * (1.0 + std::cos(kPi * at / static_cast<double>(decay)));
  const double alpha = *c_.min_lr / base_lr_;
  return (1.0 - alpha) * cosine + alpha;
}

double Schedule::megatron(int64_t s) const {
  const double init = c_.init_lr.value_or(0.0);
  if (warmup_ > 0 && s <= warmup_) {
    return init + (base_lr_ - init) * static_cast<double>(s) / static_cast<double>(warmup_);
  }
  if (c_.name == "megatron_constant") return base_lr_;
  const double low = *c_.min_lr;
  if (s > decay_) return low;
  if (c_.name == "megatron_inverse_sqrt") {
    const double w = static_cast<double>(std::max<int64_t>(warmup_, 1));
    const double n = static_cast<double>(std::max<int64_t>(s, 1));
    return std::max(low, base_lr_ * std::sqrt(w) / std::sqrt(n));
  }
  const double span = static_cast<double>(decay_ - warmup_);
  const double q = span > 0 ? static_cast<double>(s - warmup_) / span : 1.0;
  double rise = 0.0;
  if (c_.name == "megatron_linear") {
    rise = 1.0 - q;
  } else if (c_.name == "megatron_cosine") {
    rise = 0.5 * (std::cos(kPi * q) + 1.0);
  } else {
    const int64_t start = decay_ - *c_.wsd_decay_steps;
    if (s <= start) return base_lr_;
    const double p = static_cast<double>(s - start) / static_cast<double>(*c_.wsd_decay_steps);
    if (*c_.wsd_style == "linear") rise = 1.0 - p;
    if (*c_.wsd_style == "cosine") rise = 0.5 * (std::cos(kPi * p) + 1.0);
    if (*c_.wsd_style == "exponential") rise = 2.0 * std::pow(0.5, p) - 1.0;
    if (*c_.wsd_style == "minus_sqrt") rise = 1.0 - std::sqrt(p);
  }
  return low + rise * (base_lr_ - low);
}

void WeightDecayRamp::reflect(config::Visitor& visitor) {
  visitor.field("end", end, {.doc = "Weight decay at the end of the ramp", .min = 0});
  visitor.field("steps", steps,
                {.doc = "Updates over which the weight decay moves from optim.weight_decay to end",
                 .unit = "updates",
                 .min = 1});
  visitor.choice("style", style, {"constant", "linear", "cosine"},
                 {.doc = "constant: no ramp; linear or cosine: the curve of the ramp"});
}

void WeightDecayRamp::check(double start) const {
  const bool ramps = style != "constant";
  LS_CHECK(ramps || (!end && !steps), ConfigError,
           "optim.weight_decay_ramp: end and steps have no effect with style 'constant'; choose "
           "linear or cosine, or remove them");
  LS_CHECK(!ramps || (end && steps), ConfigError,
           "optim.weight_decay_ramp: style '{}' needs both end and steps", style);
  LS_CHECK(!ramps || *end >= start, ConfigError,
           "optim.weight_decay_ramp.end: {} is below optim.weight_decay {}; the ramp only rises",
           end.value_or(0), start);
}

double WeightDecayRamp::value(double start, int64_t s) const {
  if (style == "constant") return start;
  if (s > *steps) return *end;
  const double q = static_cast<double>(s) / static_cast<double>(*steps);
  const double rise = style == "linear" ? q : 0.5 * (std::cos(kPi * (1.0 - q)) + 1.0);
  return start + rise * (*end - start);
}

}  // namespace longship::train
