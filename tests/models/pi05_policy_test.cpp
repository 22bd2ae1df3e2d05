// Roles, freezing, random draws, loss reductions, sampling.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/common/parameter_patterns.h"
#include "models/pi05/mapping.h"
#include "models/pi05/plan.h"
#include "models/pi05/sampling.h"
#include "models/tiny_case.h"

namespace longship::models {
namespace {

using testing::relative;
using testing::tiny_inputs;
using testing::tiny_policy;

std::vector<std::string> names_with(Pi05Policy& policy, ParamRole role) {
  std::vector<std::string> out;
  for (const ParamInfo& info : policy.parameters()) {
    if (info.role == role) out.push_back(info.name);
  }
  return out;
}

TEST(Pi05Roles, DeadParametersAreThoseOfTheReference) {
  const auto policy = tiny_policy();
  std::vector<std::string> frozen = names_with(*policy, ParamRole::kFrozen);
  std::sort(frozen.begin(), frozen.end());
  const std::string g = "paligemma_with_expert.paligemma.model.language_model.";
  EXPECT_EQ(frozen,
            (std::vector<std::string>{
                g + "layers.2.mlp.down_proj.weight", g + "layers.2.mlp.gate_proj.weight",
                g + "layers.2.mlp.up_proj.weight", g + "layers.2.post_attention_layernorm.weight",
                g + "layers.2.self_attn.o_proj.weight", g + "norm.weight"}));
  EXPECT_EQ(names_with(*policy, ParamRole::kDecayOnly),
            (std::vector<std::string>{g + "layers.2.self_attn.q_proj.weight"}));
}

TEST(Pi05Freeze, VisionLeavesTheProjectorTrainable) {
  const auto policy = tiny_policy("pi05/tiny_train", [](Pi05Config& c) { c.freeze = {"vision"}; });
  policy->loss(tiny_inputs().pack_batch(), {}).loss.backward();
  for (const ParamInfo& info : policy->parameters()) {
    const bool vision = info.name.find("vision_tower") != std::string::npos;
    if (vision) {
      EXPECT_EQ(info.role, ParamRole::kFrozen) << info.name;
    }
    EXPECT_EQ(info.tensor.grad().defined(), info.role == ParamRole::kTrainable) << info.name;
    if (info.name.find("multi_modal_projector") != std::string::npos) {
      EXPECT_EQ(info.role, ParamRole::kTrainable);
    }
  }
}

TEST(Pi05Freeze, ExpertOnlyKeepsTheLossAndTheExpertGradients) {
  const auto all = tiny_policy(),
             expert =
                 tiny_policy("pi05/tiny_train", [](Pi05Config&c) { c.freeze = {"expert_only"}; });
  at::Tensor a = all->loss(tiny_inputs().pack_batch(), {}).loss,
             b = expert->loss(tiny_inputs().pack_batch(), {}).loss;
  EXPECT_EQ(a.item<float>(), b.item<float>());
  a.backward();
  b.backward();
  for (size_t i = 0; i < all->parameters().size(); ++i) {
    const ParamInfo info = expert->parameters()[i];
    if (info.role != ParamRole::kTrainable) continue;
    EXPECT_FALSE(info.name.starts_with("paligemma_with_expert.paligemma.")) << info.name;
    EXPECT_LT(relative(info.tensor.grad(), all->parameters()[i].tensor.grad()), 1e-5) << info.name;
  }
}

TEST(Pi05Freeze, PatternsMatchGlobsAndPrefixes) {
  EXPECT_TRUE(matches_parameter("*.mlp.*", "a.layers.0.mlp.fc1.weight"));
  EXPECT_TRUE(matches_parameter("a.layers.1", "a.layers.1.w"));
  EXPECT_FALSE(matches_parameter("a.layers.1", "a.layers.10.w"));
  try {
    tiny_policy("pi05/tiny_train", [](Pi05Config& c) { c.freeze = {"visoin"}; });
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("visoin"), std::string::npos);
  }
  EXPECT_THROW(tiny_policy("pi05/tiny_train", [](Pi05Config& c) { c.freeze = {"*"}; }),
               ConfigError);
}

TEST(Pi05Draws, DependOnSampleIdsOnly) {
  const std::vector<int64_t> ids = {7, 3, 9}, turned = {9, 7};
  const at::Tensor a = draw_noise(1, RngStream::kNoise, 5, ids, 4, 6, at::kCPU);
  const at::Tensor b = draw_noise(1, RngStream::kNoise, 5, turned, 4, 6, at::kCPU);
  EXPECT_TRUE(at::equal(a[0], b[1]));
  EXPECT_TRUE(at::equal(a[2], b[0]));
  EXPECT_FALSE(at::equal(a, draw_noise(1, RngStream::kNoise, 6, ids, 4, 6, at::kCPU)));
  EXPECT_FALSE(at::equal(a, draw_noise(2, RngStream::kNoise, 5, ids, 4, 6, at::kCPU)));
}

double mean_time(const Pi05Config& config, double* low, double* high) {
  std::vector<int64_t> ids(20000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  const at::Tensor t = draw_time(config, 3, 0, ids, at::kCPU);
  *low = t.min().item<double>();
  *high = t.max().item<double>();
  return t.mean().item<double>();
}

TEST(Pi05Draws, TimeHasTheBetaDistribution) {
  Pi05Config config;
  double low = 0, high = 0;
  EXPECT_NEAR(mean_time(config, &low, &high), 0.999 * 0.6 + 0.001,
              5e-3);  // mean alpha / (alpha + beta)
  EXPECT_GE(low, 0.001);
  EXPECT_LE(high, 1.0);
  config.time_beta = 2.0;
  EXPECT_NEAR(mean_time(config, &low, &high), 0.999 * 1.5 / 3.5 + 0.001, 5e-3);
}

TEST(Pi05Draws, EulerTimesOfBothPresets) {
  const std::vector<float> openpi = euler_times(10, true), loongforge = euler_times(10, false);
  ASSERT_EQ(openpi.size(), 10u);
  EXPECT_EQ(openpi[7], 0.2999999225139618f);
  EXPECT_EQ(loongforge[7], static_cast<float>(1.0 + 7 * -0.1));
  EXPECT_EQ(euler_times(7, true).size(), 7u);
}

TEST(Pi05Loss, LossRepeatsForTheSameKeyAndChangesWithTheStep) {
  const auto policy = tiny_policy();
  Pi05Batch batch = tiny_inputs().pack_batch();
  batch.noise = batch.time = at::Tensor();
  const float a = policy->loss(batch, {1, 2}).loss.item<float>();
  EXPECT_EQ(a, policy->loss(batch, DrawKey{1, 2}).loss.item<float>());
  EXPECT_NE(a, policy->loss(batch, DrawKey{1, 3}).loss.item<float>());
}

TEST(Pi05Loss, ReductionsMatchTheRecordedOnes) {
  const auto value = [](const std::function<void(Pi05Config&)>& change) {
    return tiny_policy("pi05/tiny_train", change)
        ->loss(tiny_inputs().pack_batch(), {})
        .loss.item<double>();
  };
  EXPECT_NEAR(value([](Pi05Config&) {}), 2.1884765625, 5e-6);
  EXPECT_NEAR(value([](Pi05Config& c) { c.parity = "loongforge"; }), 2.4943783283233643, 5e-6);
}

TEST(Pi05Loss, LoongforgeWithoutRealDimsIsRefused) {
  Pi05Config config;
  config.size = "tiny";
  config.parity = "loongforge";
  EXPECT_THROW(Pi05Policy(config, {.device = at::kMeta, .dtype = at::kFloat, .seed = 0}),
               ConfigError);
}

TEST(Pi05Sample, DrawsShareThePrefixAndEqualSingleSamples) {
  at::NoGradGuard no_grad;
  const auto policy = tiny_policy();
  Pi05Batch batch = tiny_inputs().pack_batch();
  batch.noise = at::Tensor();
  const at::Tensor draws = policy->sample_draws(batch, 11, 3);
  EXPECT_EQ(draws.sizes(), (std::vector<int64_t>{3, 4, 5, 7}));
  for (uint64_t d = 0; d < 3; ++d) {
    EXPECT_TRUE(at::equal(draws[static_cast<int64_t>(d)], policy->sample(batch, {11, d})));
  }
}

TEST(Pi05Init, ScratchWeightsFollowTheSeedAndGiveAFiniteLoss) {
  Pi05Config config;
  config.size = "tiny";
  config.data.horizon = 5;
  Pi05Policy a(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 4});
  Pi05Policy b(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 4});
  Pi05Policy c(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 5});
  const Pi05Batch batch = tiny_inputs().pack_batch();
  const float loss = a.loss(batch, {}).loss.item<float>();
  EXPECT_EQ(loss, b.loss(batch, {}).loss.item<float>());
  EXPECT_NE(loss, c.loss(batch, {}).loss.item<float>());
  EXPECT_GT(loss, 0.3f);
  EXPECT_LT(loss, 10.0f);
}

TEST(Pi05Init, GateBiasOpensTheExpert) {
  Pi05Config config;
  config.size = "tiny";
  Pi05Policy policy(config, {.device = at::kCPU, .dtype = at::kFloat, .seed = 4});
  for (const ParamInfo& info : policy.parameters()) {
    if (!info.name.ends_with("dense.bias")) continue;
    EXPECT_EQ(info.tensor.detach().narrow(0, 0, 40).abs().max().item<float>(), 0.0f);
    EXPECT_EQ(info.tensor.detach().narrow(0, 40, 20).min().item<float>(), 1.0f);
  }
}

}  // namespace
}  // namespace longship::models
