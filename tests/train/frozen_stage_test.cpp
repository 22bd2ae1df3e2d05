// A frozen backbone beside the step, or from the cache: the same losses, bit for bit.
#include "train/frozen_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/spec.h"
#include "runtime/device.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "train/assembly.h"
#include "train/session.h"

namespace longship::train {
namespace {

using Overrides = std::vector<std::string>;

Recipe recipe_of(const std::string& family, const Overrides& more) {
  Overrides all = {
      "model.action_dim=2",      "model.state_dim=2",    "model.tune_llm=false",
      "model.tune_visual=false", "perf.feature_cache=0", "model.crop_fraction=1",
      "model.dropout=true",      "train.global_batch=4", "model.state_dropout_prob=0.2"};
  all.insert(all.end(), more.begin(), more.end());
  return load_recipe(longship::testing::source_root() / "configs" / family / "pusht_demo.yaml", all,
                     &models::find_family);
}

struct Ran {
  std::vector<StepReport> reports;
  EngineFacts facts;
};

// Twelve samples of three lengths, shuffled anew in each of the epochs of three steps.
Ran run(const std::string& family, const Overrides& overrides, int64_t epochs = 4) {
  const Recipe recipe = recipe_of(family, overrides);
  apply_library_settings(recipe);
  const Assembly assembly = assemble(recipe, runtime::parse_device(recipe.train.device));
  const int64_t size = recipe.train.global_batch / recipe.train.num_micro();
  Ran out;
  int64_t updates = 0;
  const auto take = [&] {
    out.reports.push_back(assembly.engine->take_report());
    updates += out.reports.back().updated ? 1 : 0;
  };
  for (int64_t step = 0; step < 3 * epochs; ++step) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    for (int64_t m = 0; m < recipe.train.num_micro(); ++m) {
      const int64_t part = (step + step / 3) % 3;
      micro.push_back(recipe.family->synthetic_batch(*recipe.model, {size, 1, 8 + part},
                                                     static_cast<uint64_t>(10 * part + m)));
      for (int64_t& id : micro.back()->sample_ids) id += 100 * part + 10 * m;
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
    }
    const UpdateScalars scalars{1e-3, 0.01};
    assembly.engine->submit(step, std::move(micro), updates, scalars, scalars);
    while (assembly.engine->in_flight() > assembly.engine->lag()) take();
  }
  while (assembly.engine->in_flight() > 0) take();
  out.facts = assembly.engine->facts();
  return out;
}

void expect_same_bits(const Ran& a, const Ran& b) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (size_t i = 0; i < a.reports.size(); ++i) {
    EXPECT_EQ(a.reports[i].loss, b.reports[i].loss) << "step " << i;
    EXPECT_EQ(a.reports[i].grad_norm, b.reports[i].grad_norm) << "step " << i;
    EXPECT_TRUE(std::isfinite(a.reports[i].loss));
  }
  EXPECT_NE(a.reports.front().loss, a.reports.back().loss);
}

class FrozenStageOf : public ::testing::TestWithParam<const char*> {};

TEST_P(FrozenStageOf, TheCacheChangesNoBit) {
  for (const char* micro : {"4", "2"}) {
    const Overrides base = {std::string("train.micro_batch=") + micro};
    const Ran plain = run(GetParam(), base);
    EXPECT_EQ(plain.facts.steps_from_cache, 0);
    const Ran cached = run(GetParam(), {base[0], "perf.feature_cache=0.5"});
    EXPECT_EQ(cached.facts.steps_from_cache, 9) << "all but the first epoch";
    expect_same_bits(cached, plain);
  }
}

TEST_P(FrozenStageOf, ASmallCacheStillGivesTheSame) {
  const Ran plain = run(GetParam(), {});
  const Ran cached = run(GetParam(), {"perf.feature_cache=0.00003"});  // some 32 KB
  EXPECT_LT(cached.facts.steps_from_cache, 9);
  expect_same_bits(cached, plain);
}

TEST_P(FrozenStageOf, LanguageLayersThatTrainStayBehindIt) {
  const Overrides top = {"model.tune_top_llm_layers=1"};
  const Ran plain = run(GetParam(), top);
  const Ran cached = run(GetParam(), {top[0], "perf.feature_cache=0.5"});
  EXPECT_EQ(cached.facts.steps_from_cache, 9);
  expect_same_bits(cached, plain);
}

TEST_P(FrozenStageOf, WhatCannotBeKeptIsRefused) {
  const auto fails = [&](const Overrides& overrides, const std::string& text) {
    const Recipe recipe = recipe_of(GetParam(), overrides);
    longship::testing::expect_error<ConfigError>([&] { assemble(recipe, at::Device(at::kCPU)); },
                                                 {text});
  };
  fails({"perf.feature_cache=1", "model.crop_fraction=0.9"}, "model.crop_fraction");
  fails({"perf.feature_cache=1", "model.color_jitter=true"}, "model.color_jitter");
  fails({"perf.feature_cache=1", "model.tune_visual=true"}, "trains from its first layers on");
}

INSTANTIATE_TEST_SUITE_P(All, FrozenStageOf, ::testing::Values("groot_n16", "groot_n17"));

class FrozenStageGpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_P(FrozenStageGpu, TwoGraphsAndTheCacheChangeNoBit) {
  const Overrides device = {"train.device=cuda", "train.dtype=bf16", "train.deterministic=true"};
  const auto with = [&](const Overrides& more) {
    Overrides all = device;
    all.insert(all.end(), more.begin(), more.end());
    return run(GetParam(), all);
  };
  const Ran eager = with({});
  for (const char* micro : {"4", "2"}) {
    const std::string size = std::string("train.micro_batch=") + micro;
    const Ran base = with({size});
    const Ran one = with({size, "train.cuda_graph=full_iteration", "perf.two_graphs=false"});
    const Ran two = with({size, "train.cuda_graph=full_iteration"});
    const Ran kept = with({size, "train.cuda_graph=full_iteration", "perf.feature_cache=0.5"});
    const Ran each = with({size, "train.cuda_graph=per_microbatch", "perf.feature_cache=0.5"});
    expect_same_bits(one, base);
    expect_same_bits(two, base);
    expect_same_bits(kept, base);
    expect_same_bits(each, base);
    EXPECT_GT(two.facts.captures, one.facts.captures);
    EXPECT_EQ(two.facts.eager_steps, 0);
    EXPECT_GT(kept.facts.steps_from_cache, 0);
  }
}

// Weights that moved behind the engine's back: named, and computed all the same.
TEST_P(FrozenStageGpu, AStepWhoseWeightsMovedRunsEagerly) {
  const auto losses = [&](bool move) {
    const Recipe recipe =
        recipe_of(GetParam(), {"train.device=cuda", "train.dtype=bf16", "train.deterministic=true",
                               "train.cuda_graph=full_iteration"});
    apply_library_settings(recipe);
    const Assembly assembly = assemble(recipe, runtime::parse_device("cuda"));
    std::vector<double> out;
    for (int64_t step = 0; step < 8; ++step) {
      if (move && step == 5) {
        for (const models::ParamInfo& info : assembly.policy->parameters()) {
          if (info.role != models::ParamRole::kFrozen) continue;
          at::Tensor tensor = info.tensor;
          tensor.set_data(tensor.detach().clone());
        }
      }
      std::vector<std::unique_ptr<models::Batch>> micro;
      micro.push_back(recipe.family->synthetic_batch(*recipe.model, {4, 1, 8}, 7));
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
      const UpdateScalars scalars{1e-3, 0.01};
      assembly.engine->submit(step, std::move(micro), step, scalars, scalars);
      out.push_back(assembly.engine->take_report().loss);
    }
    EXPECT_EQ(assembly.engine->facts().eager_steps, move ? 3 : 0);
    return out;
  };
  EXPECT_EQ(losses(true), losses(false));
}

INSTANTIATE_TEST_SUITE_P(All, FrozenStageGpu, ::testing::Values("groot_n16", "groot_n17"));

}  // namespace
}  // namespace longship::train
