// The recipes of GR00T at full size against what the recorded training runs say they were trained
// with, and which parameters they decay.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "models/groot/config.h"
#include "models/groot/policy.h"
#include "models/spec.h"
#include "support/paths.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/schedule.h"

namespace longship::train {
namespace {

using models::GrootConfig;
using models::GrootPolicy;
using models::GrootVersion;
using Names = std::set<std::string>;

struct Family {
  const char* name;
  GrootVersion version;
};

nlohmann::json recorded(const std::string& family, const std::string& file) {
  std::ifstream in(longship::testing::golden_path(family + "/full_tiny") / file);
  return nlohmann::json::parse(in);
}

Recipe full_recipe(const std::string& family, const std::vector<std::string>& overrides = {}) {
  return load_recipe(longship::testing::source_root() / "configs" / family / "full.yaml", overrides,
                     &models::find_family);
}

/// Names of the trained parameters of a model, of those that the recipe does not decay, and of
/// those with one dimension.
struct Trained {
  Names all, undecayed, vectors;
};

Trained trained_by(const GrootConfig& config, const Recipe& recipe) {
  models::BuildOptions options;
  options.device = at::kMeta;
  options.initialise = false;
  GrootPolicy policy(config, options);
  Trained out;
  const AdamW optimizer(policy.parameters(), recipe.optim.adamw());
  for (const AdamW::Entry& e : optimizer.entries()) {
    out.all.insert(e.name);
    if (e.weight_decay.value_or(recipe.optim.weight_decay) == 0) out.undecayed.insert(e.name);
    if (e.param.dim() == 1) out.vectors.insert(e.name);
    EXPECT_EQ(e.lr_scale, 1) << e.name;
  }
  return out;
}

class GrootFullRecipe : public ::testing::TestWithParam<Family> {};

TEST_P(GrootFullRecipe, OptimizerIsThatOfTheRecordedRuns) {
  const auto want = recorded(GetParam().name, "train.json").at("recipe");
  const Recipe r = full_recipe(GetParam().name);
  EXPECT_EQ(r.optim.name, "adamw");
  EXPECT_EQ(r.optim.lr, want.at("lr").get<double>());
  EXPECT_EQ(r.optim.betas, want.at("betas").get<std::vector<double>>());
  EXPECT_EQ(r.optim.eps, want.at("eps").get<double>());
  EXPECT_EQ(r.optim.weight_decay, want.at("weight_decay").get<double>());
  EXPECT_EQ(r.optim.clip_norm, want.at("clip").get<double>());
  EXPECT_FALSE(r.optim.ema.has_value());
  EXPECT_EQ(r.optim.weight_decay_ramp.style, "constant");
  EXPECT_EQ(r.optim.schedule.name, want.at("schedule").get<std::string>());
  EXPECT_EQ(r.optim.schedule.min_lr, want.at("min_lr").get<double>());
  // The recorded runs have 20 steps. Isaac's own rule is a warm-up of 5 % of them.
  ASSERT_TRUE(r.optim.schedule.warmup_steps && r.optim.schedule.decay_steps);
  EXPECT_EQ(*r.optim.schedule.decay_steps, r.train.steps);
  EXPECT_EQ(*r.optim.schedule.warmup_steps * 20, r.train.steps);
}

// The schedule's values, with the recorded number of steps.
TEST_P(GrootFullRecipe, LearningRatesAreThoseOfTheRecordedRun) {
  const auto file = recorded(GetParam().name, "train.json");
  const Recipe r = full_recipe(GetParam().name);
  ScheduleConfig config = r.optim.schedule;
  config.warmup_steps = file.at("recipe").at("warmup").get<int64_t>();
  config.decay_steps = file.at("recipe").at("steps").get<int64_t>();
  const Schedule schedule(config, r.optim.lr, *config.decay_steps);
  ASSERT_EQ(file.at("documented").size(), 20U);
  for (const auto& step : file.at("documented")) {
    EXPECT_DOUBLE_EQ(schedule.lr(step.at("step").get<int64_t>()), step.at("lr").get<double>());
  }
}

TEST_P(GrootFullRecipe, DecayLeavesOutWhatTheReferenceLeavesOut) {
  const auto file = recorded(GetParam().name, "train.json");
  Names want;
  if (file.contains("no_decay")) {
    for (const auto& name : file.at("no_decay")) want.insert(name.get<std::string>());
  }
  const bool is_n17 = GetParam().version == GrootVersion::kN17;
  EXPECT_EQ(want.size(), is_n17 ? 68U : 0U);
  const GrootConfig toy = models::groot_import_config(
      longship::testing::golden_path(std::string(GetParam().name) + "/full_tiny") / "config.json",
      GetParam().version);
  const Trained got = trained_by(toy, full_recipe(GetParam().name));
  EXPECT_EQ(got.undecayed, want);
  // The recorded run trained the same parameters.
  Names trained;
  for (const auto& [name, values] : file.at("stress_final").items()) trained.insert(name);
  EXPECT_EQ(got.all, trained);
}

// The same rule at full size: biases and the norms' own weights, block by block as in the toy.
TEST_P(GrootFullRecipe, DecayOfTheFullModel) {
  const Recipe r = full_recipe(GetParam().name);
  const auto* config = dynamic_cast<const GrootConfig*>(r.model.get());
  ASSERT_NE(config, nullptr);
  ASSERT_EQ(config->size, "full");
  const Trained got = trained_by(*config, r);
  Names want;
  if (GetParam().version == GrootVersion::kN17) {
    const models::GrootSizes sizes = config->sizes();
    const auto file = recorded(GetParam().name, "train.json");
    // What the recorded list has of blocks 0, with the number put in, and what is in no block.
    for (const auto& entry : file.at("no_decay")) {
      const auto name = entry.get<std::string>();
      const std::string mark = ".transformer_blocks.";
      const size_t at = name.find(mark);
      if (at == std::string::npos) want.insert(name);
      if (at == std::string::npos || !name.substr(at + mark.size()).starts_with("0.")) continue;
      const bool is_dit = name.starts_with("action_head.model.");
      for (int64_t l = 0; l < (is_dit ? sizes.dit.depth : sizes.vl->depth); ++l) {
        want.insert(fmt::format("{}{}{}", name.substr(0, at + mark.size()), l,
                                name.substr(at + mark.size() + 1)));
      }
    }
    EXPECT_EQ(want.size(), 6U + 32 * 7 + 4 * 10);
  }
  EXPECT_EQ(got.undecayed, want);
}

// What the recipe says of training more: one pattern more, and every bias and norm is exempt. They
// are all the parameters with one dimension.
TEST(GrootFullRecipes, OnePatternMoreForTheBackbone) {
  const Recipe r = full_recipe(
      "groot_n17",
      {"model.tune_llm=true", "model.tune_visual=true",
       "optim.groups=[{pattern: '*.bias', weight_decay: 0}, {pattern: '*.norm?.weight', "
       "weight_decay: 0}, {pattern: '*.vlln.weight', weight_decay: 0}, {pattern: "
       "'*norm.weight', weight_decay: 0}]"});
  const auto* config = dynamic_cast<const GrootConfig*>(r.model.get());
  ASSERT_NE(config, nullptr);
  const Trained got = trained_by(*config, r);
  EXPECT_TRUE(got.all.contains("backbone.model.model.visual.merger.norm.weight"));
  EXPECT_TRUE(got.all.contains("action_head.model.transformer_blocks.0.norm1.linear.weight"));
  EXPECT_EQ(got.undecayed, got.vectors);
}

// N1.7's head and its data transform leave the state of a training sample out, each for itself.
TEST_P(GrootFullRecipe, StatesAreLeftOutAsInTheReference) {
  const Recipe r = full_recipe(GetParam().name);
  const auto* config = dynamic_cast<const GrootConfig*>(r.model.get());
  ASSERT_NE(config, nullptr);
  const double want = GetParam().version == GrootVersion::kN17 ? 0.2 : 0.0;
  EXPECT_EQ(config->state_input_dropout, want);
  EXPECT_EQ(config->sizes().state_dropout, want);
}

INSTANTIATE_TEST_SUITE_P(Both, GrootFullRecipe,
                         ::testing::Values(Family{"groot_n16", GrootVersion::kN16},
                                           Family{"groot_n17", GrootVersion::kN17}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace longship::train
