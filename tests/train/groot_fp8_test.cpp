// GR00T in FP8 through the trainer's engine: near bf16, and the same bits however the step runs.
#include <gtest/gtest.h>

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
  Overrides all = {"model.action_dim=2",     "model.state_dim=2",        "model.tune_llm=true",
                   "model.tune_visual=true", "perf.feature_cache=0",     "model.crop_fraction=1",
                   "train.dtype=bf16",       "train.deterministic=true", "train.global_batch=4",
                   "train.fp8=default"};
  all.insert(all.end(), more.begin(), more.end());
  return load_recipe(longship::testing::source_root() / "configs" / family / "pusht_demo.yaml", all,
                     &models::find_family);
}

/// The backbone's tower and first text layer are frozen.
const Overrides kFrozen = {"model.tune_llm=false", "model.tune_visual=false",
                           "model.tune_top_llm_layers=1"};

Overrides with(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

struct Ran {
  std::vector<StepReport> reports;
  EngineFacts facts;
};

// Ten steps over batches of two lengths.
Ran run(const std::string& family, const Overrides& overrides) {
  const Recipe recipe = recipe_of(family, overrides);
  apply_library_settings(recipe);
  const Assembly assembly = assemble(recipe, runtime::parse_device(recipe.train.device));
  const int64_t size = recipe.train.global_batch / recipe.train.num_micro();
  Ran out;
  for (int64_t step = 0; step < 10; ++step) {
    std::vector<std::unique_ptr<models::Batch>> micro;
    for (int64_t m = 0; m < recipe.train.num_micro(); ++m) {
      const int64_t part = step % 2;
      micro.push_back(recipe.family->synthetic_batch(*recipe.model, {size, 1, 8 + 3 * part},
                                                     static_cast<uint64_t>(10 * part + m)));
      for (int64_t& id : micro.back()->sample_ids) id += 100 * part + 10 * m;
      assembly.policy->prepare(*micro.back(), {42, static_cast<uint64_t>(step)});
    }
    const UpdateScalars scalars{1e-3, 0.01};
    assembly.engine->submit(step, std::move(micro), step, scalars, scalars);
    while (assembly.engine->in_flight() > assembly.engine->lag()) {
      out.reports.push_back(assembly.engine->take_report());
    }
  }
  while (assembly.engine->in_flight() > 0) out.reports.push_back(assembly.engine->take_report());
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
}

class GrootFp8Train : public ::testing::TestWithParam<const char*> {};

TEST_P(GrootFp8Train, WhatCannotRunIsRefused) {
  longship::testing::expect_error<ConfigError>(
      [&] { assemble(recipe_of(GetParam(), {"train.device=cpu"}), at::Device(at::kCPU)); },
      {"train.fp8", "CUDA"});
  longship::testing::expect_error<ConfigError>([&] { recipe_of(GetParam(), {"train.dtype=fp32"}); },
                                               {"train.fp8", "bf16"});
}

INSTANTIATE_TEST_SUITE_P(All, GrootFp8Train, ::testing::Values("groot_n16", "groot_n17"));

class GrootFp8Gpu : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_P(GrootFp8Gpu, LossesStayNearThoseOfBf16) {
  for (const Overrides& base : {Overrides{}, kFrozen}) {
    const Overrides device = with({"train.device=cuda"}, base);
    const Ran bf16 = run(GetParam(), with(device, {"train.fp8=null"}));
    const Ran fp8 = run(GetParam(), device);
    ASSERT_EQ(fp8.reports.size(), bf16.reports.size());
    bool differs = false;
    for (size_t i = 0; i < fp8.reports.size(); ++i) {
      EXPECT_NEAR(fp8.reports[i].loss, bf16.reports[i].loss, 0.03 * bf16.reports[i].loss)
          << "step " << i;
      differs = differs || fp8.reports[i].loss != bf16.reports[i].loss;
    }
    EXPECT_TRUE(differs);
  }
}

TEST_P(GrootFp8Gpu, GraphsChangeNoBit) {
  for (const char* micro : {"4", "2"}) {
    for (const Overrides& base : {Overrides{}, kFrozen}) {
      const Overrides device =
          with({"train.device=cuda", std::string("train.micro_batch=") + micro}, base);
      const Ran eager = run(GetParam(), device);
      const Ran one = run(
          GetParam(), with(device, {"train.cuda_graph=full_iteration", "perf.two_graphs=false"}));
      const Ran two = run(GetParam(), with(device, {"train.cuda_graph=full_iteration"}));
      const Ran each = run(GetParam(), with(device, {"train.cuda_graph=per_microbatch"}));
      expect_same_bits(one, eager);
      expect_same_bits(two, eager);
      expect_same_bits(each, eager);
      EXPECT_EQ(two.facts.eager_steps, 0);
      if (!base.empty()) {
        EXPECT_GT(two.facts.captures, one.facts.captures);
      }
    }
  }
}

TEST_P(GrootFp8Gpu, RecomputedLayersChangeNoBit) {
  const Overrides device = {"train.device=cuda", "train.cuda_graph=full_iteration"};
  expect_same_bits(run(GetParam(), with(device, {"train.recompute=full"})),
                   run(GetParam(), device));
}

TEST_P(GrootFp8Gpu, CurrentScalingRunsToo) {
  const Overrides device = with({"train.device=cuda", "perf.fp8_scaling=current"}, kFrozen);
  expect_same_bits(run(GetParam(), with(device, {"train.cuda_graph=full_iteration"})),
                   run(GetParam(), device));
}

INSTANTIATE_TEST_SUITE_P(All, GrootFp8Gpu, ::testing::Values("groot_n16", "groot_n17"));

}  // namespace
}  // namespace longship::train
