// bench ablate: every optimisation is a switch, is tried where it can matter and named where it
// cannot, and computes the same without.
#include "train/ablate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "support/paths.h"
#include "train/session.h"
#include "train/switches.h"

namespace longship::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Settings = std::vector<std::string>;

Recipe recipe_of(const std::string& config, const Settings& overrides = {}) {
  const auto source = longship::testing::source_root();
  const bool pi05 = config.starts_with("pi05");
  Settings all = {
      "data.datasets.0.path=" + longship::testing::dataset_path("pusht_v30").string(),
      "model.tokenizer=" +
          (source / "data/tokenizers" / (pi05 ? "pi05_demo.model" : "groot_demo.json")).string(),
      "train.threads=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_recipe(source / "configs" / config, all, &models::find_family);
}

const Settings kConfigs = {"pi05/tiny_test.yaml", "groot_n16/pusht_demo.yaml",
                           "groot_n17/pusht_demo.yaml"};

/// A few small steps on the CPU, with the fused operators.
Recipe small(const std::string& config, Settings overrides = {}) {
  for (const char* setting :
       {"train.device=cpu", "train.global_batch=2", "perf.cpu_oracles=true"}) {
    overrides.emplace_back(setting);
  }
  if (config.starts_with("pi05")) overrides.emplace_back("train.micro_batch=1");
  return recipe_of(config, overrides);
}
BenchOptions few(bool random) {
  BenchOptions out;
  out.warmup = 1;
  out.steps = 2;
  out.profile_steps = 0;
  if (random) out.synthetic_tokens = 8;
  out.synthetic_images = 1;
  return out;
}

std::map<std::string, std::string> values_of(const Recipe& recipe) {
  std::map<std::string, std::string> out;
  for (auto& [key, value] : flatten(recipe)) out[key] = value;
  return out;
}

std::vector<std::string> keys_of(const nlohmann::json& rows) {
  std::vector<std::string> out;
  for (const auto& row : rows) out.push_back(row["switch"].get<std::string>());
  return out;
}

TEST(Ablate, EverySwitchIsASettingAndItsPlainValueIsAllowed) {
  std::set<std::string> found;
  for (const std::string& config : kConfigs) {
    const Recipe recipe = recipe_of(config);
    const auto values = values_of(recipe);
    for (const Switch& one : all_switches()) {
      if (!values.contains(one.key)) continue;
      found.insert(one.key);
      Settings plain = {one.key + "=" + one.off};
      plain.insert(plain.end(), one.with.begin(), one.with.end());
      EXPECT_EQ(values_of(with_overrides(recipe, plain, &models::find_family)).at(one.key),
                one.off);
      for (const std::string& setting : one.both) {
        EXPECT_TRUE(values.contains(setting.substr(0, setting.find('=')))) << setting;
      }
    }
  }
  for (const Switch& one : all_switches()) EXPECT_TRUE(found.contains(one.key)) << one.key;
  for (const models::ModelFamily* family : models::all_families()) {
    for (const std::string& key : family->unused_switches()) {
      EXPECT_TRUE(found.contains(key)) << family->name() << " " << key;
    }
  }
}

TEST(Ablate, OnAGpuTheOptimizerIsComparedWithoutGraphsOnBothSides) {
  const SwitchFacts facts{.device = at::Device(at::kCUDA, 0), .random_batches = true};
  const auto row = [&](const Recipe& recipe) {
    return plan_switches(recipe, facts, {"perf.fused_optimizer"}).rows.at(0);
  };
  const SwitchRow pi05 = row(recipe_of("pi05/full.yaml"));
  EXPECT_THAT(pi05.both, ElementsAre("train.cuda_graph=none", "perf.sparse_embedding=false"));
  EXPECT_THAT(pi05.plain, ElementsAre("perf.fused_optimizer=false", "train.cuda_graph=none",
                                      "perf.sparse_embedding=false"));
  EXPECT_THAT(row(recipe_of("groot_n17/full.yaml")).both, ElementsAre("train.cuda_graph=none"));
  EXPECT_THAT(row(recipe_of("groot_n17/full.yaml", {"train.cuda_graph=none"})).both, IsEmpty());
}

TEST(Ablate, OnAGpuEverySwitchIsTriedOrNamed) {
  SwitchFacts facts{.device = at::Device(at::kCUDA, 0), .random_batches = true};
  const auto keys = [](const SwitchPlan& plan) {
    std::vector<std::string> out;
    for (const SwitchRow& row : plan.rows) out.push_back(row.key);
    return out;
  };
  const SwitchPlan pi05 = plan_switches(recipe_of("pi05/full.yaml", {"train.fp8=default"}), facts);
  EXPECT_THAT(keys(pi05),
              ElementsAre("perf.copy_ahead", "perf.fused_norms", "perf.fused_activations",
                          "perf.fused_rope", "perf.fused_loss", "perf.sparse_embedding",
                          "perf.stacked_linears", "perf.flash_attention", "perf.pack_text",
                          "perf.early_launch", "train.fp8", "perf.fused_optimizer",
                          "perf.hand_over_gradients", "train.cuda_graph"));
  EXPECT_EQ(pi05.rows.size() + pi05.left_out.size(), all_switches().size());
  facts.random_batches = false;
  facts.frozen_part = true;
  const SwitchPlan groot = plan_switches(recipe_of("groot_n17/full.yaml"), facts);
  EXPECT_EQ(groot.rows.size() + groot.left_out.size(), all_switches().size());
  const std::map<std::string, std::string> why(groot.left_out.begin(), groot.left_out.end());
  for (const char* key : {"perf.fused_loss", "perf.sparse_embedding", "perf.pack_text"}) {
    ASSERT_TRUE(why.contains(key)) << key;
    EXPECT_EQ(why.at(key), "nothing of groot_n17 uses it");
  }
  for (const char* key : {"data.workers", "data.prefetch", "data.share_decoding", "perf.grid_cache",
                          "perf.two_graphs", "model.train_slots"}) {
    EXPECT_FALSE(why.contains(key)) << key << ": " << why.at(key);
  }
}

TEST(Ablate, Pi05OnRandomBatches) {
  const auto report = ablate(small("pi05/tiny_test.yaml", {"model.action_dim=2"}), nullptr,
                             few(true), {}, &models::find_family);
  EXPECT_TRUE(report["agree"].get<bool>()) << ablation_text(report);
  EXPECT_THAT(keys_of(report["rows"]),
              ElementsAre("perf.fused_norms", "perf.fused_activations", "perf.fused_rope",
                          "perf.fused_loss", "perf.sparse_embedding", "perf.stacked_linears",
                          "perf.pack_text", "perf.hand_over_gradients"));
  const std::string text = ablation_text(report);
  for (const char* line :
       {"not tried: data.workers: random batches (--synthetic) are made before the steps",
        "not tried: perf.grid_cache: nothing of pi05 uses it",
        "not tried: perf.copy_ahead: needs a CUDA device",
        "not tried: train.recompute: off already (none)",
        "not tried: model.train_slots: pi05 has no such setting"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Ablate, GrootOnRandomBatches) {
  for (const char* config : {"groot_n16/pusht_demo.yaml", "groot_n17/pusht_demo.yaml"}) {
    SCOPED_TRACE(config);
    const Recipe recipe = small(config, {"model.action_dim=2", "model.state_dim=2"});
    const auto report = ablate(recipe, nullptr, few(true), {}, &models::find_family);
    EXPECT_TRUE(report["agree"].get<bool>()) << ablation_text(report);
    Settings expected = {"perf.fused_norms",     "perf.fused_activations",   "perf.fused_rope",
                         "perf.stacked_linears", "perf.hand_over_gradients", "model.train_slots"};
    if (recipe.perf.feature_cache > 0) expected.emplace_back("perf.feature_cache");
    EXPECT_THAT(keys_of(report["rows"]), ::testing::UnorderedElementsAreArray(expected));
    EXPECT_THAT(ablation_text(report),
                HasSubstr("not tried: perf.fused_loss: nothing of " + recipe.family->name()));
  }
}

TEST(Ablate, ReadingAndGradientsChangeNoLossOverRealData) {
  const Recipe recipe = small("pi05/tiny_test.yaml");
  const auto report =
      ablate(recipe, open_dataset(recipe), few(false),
             {"data.workers", "data.prefetch", "data.share_decoding", "perf.hand_over_gradients"},
             &models::find_family);
  ASSERT_EQ(report["rows"].size(), 4u);
  for (const auto& row : report["rows"]) {
    EXPECT_EQ(row["loss_error"].get<double>(), 0) << row.dump();
  }
  EXPECT_THAT(report["left_out"], IsEmpty());
  EXPECT_GT(report["base"]["ms_per_step_wall"].get<double>(), 0);

  const Recipe groot = small("groot_n17/pusht_demo.yaml");
  const auto grids =
      ablate(groot, open_dataset(groot), few(false), {"perf.grid_cache"}, &models::find_family);
  EXPECT_EQ(grids["rows"].at(0)["loss_error"].get<double>(), 0);
}

TEST(Ablate, SwitchesThatAFamilyDoesNotUseChangeNoBit) {
  for (const std::string& config : kConfigs) {
    Settings sizes = {"model.action_dim=2"};
    if (!config.starts_with("pi05")) sizes.emplace_back("model.state_dim=2");
    const Recipe recipe = small(config, sizes);
    BenchLosses base;
    bench_train(recipe, nullptr, few(true), &models::find_family, &base);
    Settings off;
    for (const std::string& key : recipe.family->unused_switches()) off.push_back(key + "=false");
    ASSERT_FALSE(off.empty());
    BenchLosses without;
    bench_train(with_overrides(recipe, off, &models::find_family), nullptr, few(true),
                &models::find_family, &without);
    EXPECT_EQ(base.losses, without.losses) << config;
  }
}

TEST(Ablate, WhatCannotBeTriedIsRefusedByName) {
  const auto message = [](const Recipe& recipe, const SwitchFacts& facts, const char* key) {
    try {
      plan_switches(recipe, facts, {key});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const Recipe groot = recipe_of("groot_n16/pusht_demo.yaml");
  const Recipe pi05 = recipe_of("pi05/tiny_test.yaml", {"perf.pack_text=false"});
  EXPECT_THAT(message(groot, {}, "perf.fast"), HasSubstr("'perf.fast' is no switch; choose from"));
  EXPECT_THAT(message(groot, {}, "perf.fused_loss"),
              HasSubstr("perf.fused_loss changes nothing here: nothing of groot_n16 uses it"));
  EXPECT_THAT(message(pi05, {}, "perf.pack_text"), HasSubstr("off already (false)"));
  EXPECT_THAT(message(pi05, {.preloaded = true}, "data.workers"), HasSubstr("--preload makes"));
  EXPECT_THAT(message(pi05, {}, "perf.fused_norms"), HasSubstr("need a CUDA device"));
  EXPECT_THAT(message(recipe_of("pi05/tiny_test.yaml", {"parallel.strategy=ddp"}), {},
                      "perf.hand_over_gradients"),
              HasSubstr("gradients go into buckets with parallel.strategy ddp"));
}

}  // namespace
}  // namespace longship::train
