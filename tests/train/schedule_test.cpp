// Schedules against the numbers of the reference programs.
#include "train/schedule.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "support/paths.h"

namespace longship::train {
namespace {

using ::testing::HasSubstr;

ScheduleConfig named(const std::string& name) {
  ScheduleConfig c;
  c.name = name;
  return c;
}

std::string message_of(const ScheduleConfig& config, double lr, int64_t steps) {
  try {
    Schedule(config, lr, steps);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void expect_relative(double value, double expected, double tolerance) {
  EXPECT_LE(std::abs(value - expected), tolerance * std::max(std::abs(expected), 1e-300))
      << value << " instead of " << expected;
}

TEST(Schedule, ConstantIsBaseRate) {
  const Schedule s(named("constant"), 3e-4, 10);
  for (int64_t i : {0, 1, 9, 10, 1000}) EXPECT_EQ(s.lr(i), 3e-4);
}

TEST(Schedule, WarmupStartsAtZeroAndReachesThePeak) {
  ScheduleConfig c = named("constant_with_warmup");
  c.warmup_steps = 4;
  const Schedule s(c, 1.0, 10);
  EXPECT_EQ(s.lr(0), 0.0);
  EXPECT_EQ(s.lr(1), 0.25);
  EXPECT_EQ(s.lr(4), 1.0);
  EXPECT_EQ(s.lr(400), 1.0);
}

TEST(Schedule, LinearEndsAtZeroAndStaysThere) {
  ScheduleConfig c = named("linear");
  c.warmup_steps = 2;
  const Schedule s(c, 1.0, 10);
  EXPECT_EQ(s.lr(2), 1.0);
  EXPECT_EQ(s.lr(6), 0.5);
  EXPECT_EQ(s.lr(10), 0.0);
  EXPECT_EQ(s.lr(25), 0.0);
}

// Shipped baseline: base 2.5e-8, 20 iterations, no warm-up; the rate logged after iteration 1 is
// that of update 2.
TEST(Schedule, CosineMatchesShippedBaseline) {
  const Schedule s(named("cosine"), 2.5e-8, 20);
  EXPECT_NEAR(s.lr(1), 2.48461e-8, 5e-14);
  EXPECT_EQ(s.lr(0), 2.5e-8);
}

TEST(Schedule, CosineHoldsItsEndUnlessToldToFollow) {
  ScheduleConfig c = named("cosine");
  EXPECT_EQ(Schedule(c, 1.0, 10).lr(20), 0.0);
  c.beyond_end = "follow";
  EXPECT_DOUBLE_EQ(Schedule(c, 1.0, 10).lr(20), 1.0);  // the reference rises again
}

// pi05 baseline: base 2.5e-5, warm-up 10, 20 steps, min 1e-6; logged 2.5e-6, 5e-6, ... and 1e-6 at
// the end.
TEST(Schedule, CosineWithMinLrMatchesShippedBaseline) {
  ScheduleConfig c = named("cosine_with_min_lr");
  c.warmup_steps = 10;
  c.min_lr = 1e-6;
  const Schedule s(c, 2.5e-5, 20);
  EXPECT_EQ(s.lr(0), 0.0);
  EXPECT_DOUBLE_EQ(s.lr(1), 2.5e-6);
  EXPECT_DOUBLE_EQ(s.lr(2), 5e-6);
  EXPECT_DOUBLE_EQ(s.lr(20), 1e-6);
  EXPECT_DOUBLE_EQ(s.lr(21), 1e-6);
}

TEST(Schedule, CosineWarmupWithMinLrStartsAboveZero) {
  ScheduleConfig c = named("cosine_warmup_with_min_lr");
  c.warmup_steps = 4;
  c.min_lr = 0.1;
  const Schedule s(c, 1.0, 12);
  EXPECT_EQ(s.lr(0), 0.25);
  EXPECT_EQ(s.lr(3), 1.0);
  const double q = 1.0 / 8.0;
  EXPECT_DOUBLE_EQ(s.lr(4), 0.5 * (1 + std::cos(M_PI * q)) * 0.9 + 0.1);
  EXPECT_DOUBLE_EQ(s.lr(11), 0.1);
}

TEST(Schedule, CosineWithRestartsRestarts) {
  ScheduleConfig c = named("cosine_with_restarts");
  c.num_cycles = 2.0;
  const Schedule s(c, 1.0, 8);
  EXPECT_EQ(s.lr(0), 1.0);
  EXPECT_NEAR(s.lr(2), 0.5, 1e-15);
  EXPECT_EQ(s.lr(4), 1.0);
  EXPECT_EQ(s.lr(8), 0.0);
  EXPECT_EQ(s.lr(9), 0.0);
}

TEST(Schedule, PolynomialEndsAtEndRate) {
  ScheduleConfig c = named("polynomial");
  c.end_lr = 0.1;
  c.power = 2.0;
  const Schedule s(c, 1.0, 10);
  EXPECT_DOUBLE_EQ(s.lr(0), 1.0);
  EXPECT_DOUBLE_EQ(s.lr(5), 0.9 * 0.25 + 0.1);
  EXPECT_DOUBLE_EQ(s.lr(10), 0.1);
  EXPECT_DOUBLE_EQ(s.lr(11), 0.1);
  EXPECT_THAT(message_of(c, 0.05, 10), HasSubstr("end_lr: 0.1 must be below optim.lr 0.05"));
}

TEST(Schedule, InverseSqrt) {
  ScheduleConfig c = named("inverse_sqrt");
  c.warmup_steps = 4;
  const Schedule s(c, 1.0, 64);
  EXPECT_EQ(s.lr(2), 0.5);
  EXPECT_DOUBLE_EQ(s.lr(4), 1.0);
  EXPECT_DOUBLE_EQ(s.lr(16), 0.5);
  EXPECT_DOUBLE_EQ(s.lr(640), s.lr(64));
  EXPECT_DOUBLE_EQ(Schedule(named("inverse_sqrt"), 1.0, 20000).lr(10000), 1.0 / std::sqrt(2.0));
}

// Shipped baseline: base 1e-3, cycle 10000, no warm-up; 3.9996e-4 after iteration 1.
TEST(Schedule, LambdaLinearMatchesShippedBaselineAndStartsAgain) {
  const Schedule s(named("lambda_linear"), 1e-3, 20);
  EXPECT_DOUBLE_EQ(s.lr(0), 4e-4);
  EXPECT_DOUBLE_EQ(s.lr(1), 3.9996e-4);
  EXPECT_DOUBLE_EQ(s.lr(10000), 0.0);
  EXPECT_DOUBLE_EQ(s.lr(10001), 3.9996e-4);
  ScheduleConfig c = named("lambda_linear");
  c.warmup_steps = 10;
  c.f_start = 0.1;
  EXPECT_DOUBLE_EQ(Schedule(c, 1.0, 20).lr(5), 0.3 / 10 * 5 + 0.1);
}

TEST(Schedule, LerobotJumpsAtTheJointAndShrinksForShortRuns) {
  ScheduleConfig c = named("lerobot_cosine");
  c.warmup_steps = 1000;
  c.decay_steps = 30000;
  c.min_lr = 2.5e-6;
  const Schedule s(c, 2.5e-5, 30000);
  EXPECT_DOUBLE_EQ(s.lr(0), 2.5e-5 / 1001.0);
  const double alpha = 0.1;
  EXPECT_DOUBLE_EQ(s.lr(1000),
                   2.5e-5 * ((1 - alpha) * 0.5 * (1 + std::cos(M_PI * 1000 / 30000.0)) + alpha));
  EXPECT_DOUBLE_EQ(s.lr(30000), 2.5e-6);
  const Schedule brief(c, 2.5e-5, 300);  // warm-up 10, decay 300
  EXPECT_DOUBLE_EQ(brief.lr(0), 2.5e-5 / 11.0);
  EXPECT_DOUBLE_EQ(brief.lr(300), 2.5e-6);
  EXPECT_TRUE(brief.depends_on_total_steps());
}

TEST(Schedule, OpenpiMatchesGoldenTrajectories) {
  for (const char* name : {"pi05/tiny_train", "pi05/pi0_tiny", "pi05/tiny_two_cameras"}) {
    const auto train = parse_json_file(testing::golden_path(name) / "train.json");
    const auto& recipe = train.at("recipe");
    ScheduleConfig c = named("openpi_cosine");
    c.warmup_steps = recipe.at("warmup_steps").get<int64_t>();
    c.decay_steps = recipe.at("decay_steps").get<int64_t>();
    c.min_lr = recipe.at("decay_lr").get<double>();
    const Schedule s(c, recipe.at("peak_lr").get<double>(), 20);
    for (const auto& step : train.at("steps")) {
      EXPECT_EQ(s.lr(step.at("step").get<int64_t>()), step.at("lr").get<double>())
          << step.at("step");
    }
  }
}

// This recording follows the cosine beyond its end, as the reference does.
TEST(Schedule, CosineWithMinLrMatchesGoldenTrajectory) {
  const auto train = parse_json_file(testing::golden_path("pi05/tiny_train/train_loongforge.json"));
  const auto& recipe = train.at("recipe");
  ScheduleConfig c = named("cosine_with_min_lr");
  c.warmup_steps = recipe.at("warmup_steps").get<int64_t>();
  c.decay_steps = recipe.at("train_iters").get<int64_t>();
  c.min_lr = recipe.at("min_lr").get<double>();
  c.beyond_end = "follow";
  const Schedule s(c, recipe.at("peak_lr").get<double>(), 20);
  for (const auto& step : train.at("steps")) {
    expect_relative(s.lr(step.at("step").get<int64_t>()), step.at("lr").get<double>(), 1e-14);
  }
}

TEST(Schedule, MegatronStylesMatchGolden) {
  const std::map<std::string, std::string> names = {
      {"constant", "megatron_constant"},
      {"linear", "megatron_linear"},
      {"cosine", "megatron_cosine"},
      {"inverse-square-root", "megatron_inverse_sqrt"},
      {"WSD", "megatron_wsd"}};
  const auto cases = parse_json_file(testing::golden_path("llm/lr_schedule/schedules.json"));
  ASSERT_EQ(cases.size(), 24U);
  for (const auto& g : cases) {
    ScheduleConfig c = named(names.at(g["style"].get<std::string>()));
    c.warmup_steps = g["warmup"].get<int64_t>();
    c.init_lr = g["init_lr"].get<double>();
    if (c.name != "megatron_constant") {
      c.decay_steps = g["decay"].get<int64_t>();
      c.min_lr = g["min_lr"].get<double>();
    }
    if (c.name == "megatron_wsd") {
      c.wsd_decay_steps = g["wsd_decay_steps"].get<int64_t>();
      c.wsd_style = g["wsd_style"].get<std::string>();
    }
    // Beyond the end the file falls to min_lr, which the inverse root does not reach by itself.
    c.beyond_end = "follow";
    const Schedule s(c, g["max_lr"].get<double>(), 1000);
    WeightDecayRamp ramp;
    ramp.end = g["end_wd"].get<double>();
    ramp.steps = g["wd_incr_steps"].get<int64_t>();
    ramp.style = g["wd_incr_style"].get<std::string>();
    const auto increment = g["increment"].get<int64_t>();
    for (size_t i = 0; i < g["lr_wd"].size(); ++i) {
      SCOPED_TRACE(fmt::format("{} {} warm-up {} iteration {}", c.name, c.wsd_style.value_or(""),
                               *c.warmup_steps, i));
      const int64_t at = static_cast<int64_t>(i) * increment;
      expect_relative(s.lr(at), g["lr_wd"][i][0].get<double>(), 1e-12);
      expect_relative(ramp.value(g["start_wd"].get<double>(), at), g["lr_wd"][i][1].get<double>(),
                      1e-12);
    }
  }
}

TEST(Schedule, EveryStyleIsFiniteAndWithinThePeak) {
  for (const std::string& name : schedule_names()) {
    ScheduleConfig c = named(name);
    if (name.find("min_lr") != std::string::npos || name.starts_with("openpi") ||
        name.starts_with("lerobot") ||
        (name.starts_with("megatron") && name != "megatron_constant")) {
      c.min_lr = 1e-5;
    }
    if (name == "megatron_wsd") {
      c.wsd_decay_steps = 10;
      c.wsd_style = "linear";
    }
    const Schedule s(c, 1e-3, 50);
    for (int64_t i = 0; i < 120; ++i) {
      EXPECT_TRUE(std::isfinite(s.lr(i))) << name << " " << i;
      EXPECT_GE(s.lr(i), 0.0) << name << " " << i;
      EXPECT_LE(s.lr(i), 1e-3 * (1 + 1e-12)) << name << " " << i;
    }
  }
}

TEST(Schedule, FieldsWithoutEffectAreErrors) {
  ScheduleConfig c = named("cosine");
  c.min_lr = 1e-6;
  c.num_cycles = 3;
  EXPECT_THAT(message_of(c, 1e-3, 100), HasSubstr("'cosine' does not read min_lr, num_cycles"));
  c = named("constant");
  c.warmup_steps = 5;
  EXPECT_THAT(message_of(c, 1e-3, 100), HasSubstr("'constant' does not read warmup_steps"));
}

TEST(Schedule, MissingAndImpossibleFieldsAreErrors) {
  EXPECT_THAT(message_of(named("cosine_with_min_lr"), 1e-3, 100), HasSubstr("min_lr: required"));
  ScheduleConfig c = named("cosine");
  c.warmup_steps = 200;
  EXPECT_THAT(message_of(c, 1e-3, 100),
              HasSubstr("warmup_steps: 200 is more than the 100 updates"));
  c = named("openpi_cosine");
  c.min_lr = 1.0;
  EXPECT_THAT(message_of(c, 1e-3, 100), HasSubstr("min_lr: 1 is above optim.lr 0.001"));
  EXPECT_THAT(message_of(named("cosin"), 1e-3, 100), HasSubstr("no schedule 'cosin'"));
}

TEST(WeightDecayRamp, RefusesFieldsWithoutEffect) {
  WeightDecayRamp ramp;
  ramp.end = 0.1;
  EXPECT_THROW(ramp.check(0.01), ConfigError);
  ramp.style = "linear";
  EXPECT_THROW(ramp.check(0.01), ConfigError);
  ramp.steps = 10;
  EXPECT_NO_THROW(ramp.check(0.01));
  EXPECT_DOUBLE_EQ(ramp.value(0.0, 5), 0.05);
}

}  // namespace
}  // namespace longship::train
