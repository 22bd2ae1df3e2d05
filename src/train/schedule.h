#pragma once
// Learning-rate schedules. Every formula gives the same double as its reference: the transformers
// and Cosmos schedulers, openpi, lerobot, Megatron-LM's OptimizerParamScheduler.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config/visitor.h"

namespace longship::train {

/// `optim.schedule`. A field that the chosen style does not read must stay null.
struct ScheduleConfig {
  std::string name = "constant";
  std::optional<int64_t> warmup_steps;
  std::optional<int64_t> decay_steps;
  std::optional<double> min_lr;
  std::optional<double> end_lr;
  std::optional<double> power;
  std::optional<double> num_cycles;
  std::optional<double> f_max;
  std::optional<double> f_min;
  std::optional<double> f_start;
  std::optional<int64_t> cycle_steps;
  std::optional<double> init_lr;
  std::optional<int64_t> wsd_decay_steps;
  std::optional<std::string> wsd_style;
  std::string beyond_end = "hold";

  void reflect(config::Visitor& visitor);
};

/// Names of all styles, in the order of the documentation.
const std::vector<std::string>& schedule_names();

/// lr(s) with s = number of updates done before, so the first update uses lr(0). After decay_steps
/// the value stays at lr(decay_steps) (`beyond_end: hold`) or keeps following the formula as the
/// reference program does (`follow`); lambda_linear starts its next cycle instead.
class Schedule {
 public:
  /// `base_lr` is the peak; `total_steps` stands in for a null decay_steps. Throws ConfigError that
  /// names the field.
  Schedule(const ScheduleConfig& config, double base_lr, int64_t total_steps);

  double lr(int64_t s) const;
  /// Whether the length of the run enters the values, so that changing train.steps changes the
  /// schedule.
  bool depends_on_total_steps() const { return depends_on_total_steps_; }

 private:
  void check_used_fields(const ScheduleConfig& config) const;
  double factor(int64_t s) const;
  double openpi(int64_t s) const;
  double lerobot_factor(int64_t s) const;
  double megatron(int64_t s) const;
  double lambda_linear_factor(int64_t s) const;

  ScheduleConfig c_;
  double base_lr_;
  int64_t total_steps_;
  int64_t warmup_ = 0;
  int64_t decay_ = 0;
  bool depends_on_total_steps_ = false;
};

/// `optim.weight_decay_ramp`: Megatron's rise of the weight decay from optim.weight_decay to `end`
/// over `steps` updates.
struct WeightDecayRamp {
  std::optional<double> end;
  std::optional<int64_t> steps;
  std::string style = "constant";

  void reflect(config::Visitor& visitor);
  /// Weight decay of the update after `s` updates; `start` for the constant style.
  double value(double start, int64_t s) const;
  /// Throws ConfigError for fields without effect and for missing ones.
  void check(double start) const;
};

}  // namespace longship::train
