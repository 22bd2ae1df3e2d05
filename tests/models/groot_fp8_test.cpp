// FP8 layers of GR00T: near the model's dtype, frozen weights converted once, state there and back.
// On the CPU the FP8 operators run as their oracles.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "models/groot/policy.h"
#include "models/groot/spec.h"
#include "runtime/device.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using longship::testing::expect_error;
using Patterns = std::vector<std::string>;

constexpr double kLearningRate = 0.02;

const ModelFamily& family_of(GrootVersion version) {
  return version == GrootVersion::kN16 ? groot_n16_family() : groot_n17_family();
}

GrootConfig config_of(GrootVersion version) {
  GrootConfig config(version);
  config.size = "demo";
  config.data.horizon = 16;
  config.action_dim = config.state_dim = 4;
  config.shortest_edge = 96;
  config.dropout = false;
  return config;
}

/// All of the model learns.
GrootConfig trained_whole(GrootVersion version) {
  GrootConfig config = config_of(version);
  config.tune_llm = config.tune_visual = true;
  return config;
}

/// The tower and the first of two text layers are frozen.
GrootConfig frozen_below(GrootVersion version) {
  GrootConfig config = config_of(version);
  config.tune_llm = config.tune_visual = false;
  config.tune_top_llm_layers = 1;
  return config;
}

BuildOptions build_of(const std::optional<Patterns>& layers, bool fused = false) {
  BuildOptions build;
  build.seed = 5;
  build.fused = {};
  if (fused) {
    build.fused.norms = build.fused.activations = build.fused.rope = build.fused.stacked = true;
  }
  if (!layers) return build;
  build.fp8.emplace();
  build.fp8->layers = *layers;
  return build;
}

// Three samples: neither the patches nor the rows of text are a multiple of 16 in N1.6.
std::unique_ptr<Batch> batch_of(GrootPolicy& policy, uint64_t seed, uint64_t step = 0) {
  const GrootConfig& config = policy.model().config();
  auto batch = family_of(config.version).synthetic_batch(config, {3, 1, 13}, seed);
  policy.prepare(*batch, {7, step});
  batch->to(policy.parameters().front().tensor.device());
  return batch;
}

/// Plain gradient descent; the loss of each step.
std::vector<double> train(GrootPolicy& policy, int64_t steps, uint64_t first = 0) {
  std::vector<double> losses;
  for (uint64_t step = first; step < first + static_cast<uint64_t>(steps); ++step) {
    policy.begin_step();
    const at::Tensor loss = policy.loss(*batch_of(policy, 40 + step % 2, step)).loss;
    loss.backward();
    losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (const ParamInfo& info : policy.parameters()) {
      if (!info.tensor.grad().defined()) continue;
      at::Tensor tensor = info.tensor;
      tensor.sub_(tensor.grad().mul(kLearningRate));
      tensor.mutable_grad() = at::Tensor();
    }
  }
  return losses;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.view(at::kByte), b.view(at::kByte));
}

std::vector<at::Tensor> copies_now(GrootPolicy& policy) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& copy : policy.model().fp8()->copies()) out.push_back(copy.clone());
  return out;
}

class GrootFp8 : public ::testing::TestWithParam<GrootVersion> {};

TEST_P(GrootFp8, LossesStayNearThoseOfTheModelsDtype) {
  for (const bool fused : {false, true}) {
    for (const GrootConfig& config : {trained_whole(GetParam()), frozen_below(GetParam())}) {
      GrootPolicy plain(config, build_of(std::nullopt, fused));
      GrootPolicy fp8(config, build_of(Patterns{"*"}, fused));
      const std::vector<double> expected = train(plain, 8), got = train(fp8, 8);
      EXPECT_NE(got, expected);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], expected[i], 0.02 * expected[i]) << "step " << i;
      }
      EXPECT_LT(expected.back(), expected.front());
    }
  }
}

/// Cosine between the gradients of both policies, over all parameters.
double gradient_cosine(GrootPolicy& plain, GrootPolicy& fp8) {
  for (GrootPolicy* policy : {&plain, &fp8}) {
    policy->begin_step();
    policy->loss(*batch_of(*policy, 40)).loss.backward();
  }
  const std::vector<ParamInfo> a = plain.parameters(), b = fp8.parameters();
  double dot = 0, own = 0, other = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor.grad().defined(), b[i].tensor.grad().defined()) << a[i].name;
    if (!a[i].tensor.grad().defined()) continue;
    const at::Tensor x = a[i].tensor.grad().flatten().to(at::kDouble);
    const at::Tensor y = b[i].tensor.grad().flatten().to(at::kDouble);
    dot += x.dot(y).item<double>();
    own += x.dot(x).item<double>();
    other += y.dot(y).item<double>();
  }
  return dot / std::sqrt(own * other);
}

// The errors of the layers in front add up in what a gradient depends on: few layers must be near,
// all of them together less so (measured: 0.995, 0.990 and 0.956 or more).
TEST_P(GrootFp8, GradientsPointWhereThoseOfTheModelsDtypeDo) {
  for (const auto& [pattern, bound] :
       {std::pair("vision.*", 0.99), std::pair("dit.*.fc?", 0.98), std::pair("*", 0.93)}) {
    GrootPolicy plain(trained_whole(GetParam()), build_of(std::nullopt, true));
    GrootPolicy fp8(trained_whole(GetParam()), build_of(Patterns{pattern}, true));
    EXPECT_GT(gradient_cosine(plain, fp8), bound) << pattern;
  }
}

TEST_P(GrootFp8, LayersAreNamedByUnitAndProduct) {
  GrootPolicy policy(config_of(GetParam()), build_of(Patterns{"*"}));
  const std::vector<std::string>& names = policy.model().fp8()->chosen();
  EXPECT_EQ(names, policy.model().fp8()->candidates());
  const std::set<std::string> all(names.begin(), names.end());
  EXPECT_EQ(all.size(), names.size());
  std::set<std::string> expected;
  for (const char* layer : {"vision.0.", "vision.1."}) {
    for (const char* part : {"qkv", "out", "fc1", "fc2"})
      expected.insert(std::string(layer) + part);
  }
  for (const char* layer : {"text.0.", "text.1."}) {
    for (const char* part : {"qkv", "out", "gate_up", "down"}) {
      expected.insert(std::string(layer) + part);
    }
  }
  for (const char* block : {"dit.0.", "dit.2."}) {
    for (const char* part : {"q", "kv", "out", "fc1", "fc2"}) {
      expected.insert(std::string(block) + part);
    }
  }
  for (const char* block : {"dit.1.", "dit.3.", "vl.0."}) {
    if (block[0] == 'v' && GetParam() == GrootVersion::kN16) continue;
    for (const char* part : {"qkv", "out", "fc1", "fc2"})
      expected.insert(std::string(block) + part);
  }
  EXPECT_EQ(all, expected);
}

TEST_P(GrootFp8, DefaultLayersExist) {
  const Patterns layers = family_of(GetParam()).default_fp8_layers();
  GrootPolicy policy(config_of(GetParam()), build_of(layers));
  const std::vector<std::string>& names = policy.model().fp8()->chosen();
  const std::set<std::string> chosen(names.begin(), names.end());
  EXPECT_TRUE(chosen.contains("vision.1.fc2"));
  EXPECT_TRUE(chosen.contains("text.1.gate_up"));
  EXPECT_TRUE(chosen.contains("dit.3.fc1"));
  EXPECT_FALSE(chosen.contains("dit.0.kv"));
  EXPECT_EQ(chosen.contains("vl.0.qkv"), GetParam() == GrootVersion::kN17);
}

TEST_P(GrootFp8, APatternThatMatchesNothingIsRefused) {
  expect_error<ConfigError>(
      [&] {
        GrootPolicy(config_of(GetParam()), build_of(Patterns{"vision.*", "text.7.qkv"}));
      },
      {"train.fp8", "text.7.qkv", "vision.0.qkv", "dit.3.fc2"});
}

// Eight sites of the tower and four of the first text layer.
TEST_P(GrootFp8, FrozenWeightsAreConvertedOnce) {
  constexpr size_t kFrozen = 12;
  GrootPolicy policy(frozen_below(GetParam()), build_of(Patterns{"*"}));
  const size_t sites = policy.model().fp8()->chosen().size();
  EXPECT_EQ(policy.model().fp8()->copies().size(), kFrozen + 2 * (sites - kFrozen))
      << "no transposed copies of what no gradient passes";
  EXPECT_EQ(policy.model().fp8()->state().size(0), static_cast<int64_t>(2 * (sites - kFrozen)));
  policy.begin_step();
  const std::vector<at::Tensor> before = copies_now(policy);
  {
    const at::NoGradGuard no_grad;
    for (const ParamInfo& info : policy.parameters()) {
      at::Tensor tensor = info.tensor;
      tensor.neg_();
    }
  }
  policy.begin_step();
  const std::vector<at::Tensor> behind = copies_now(policy);
  for (size_t i = 0; i < behind.size(); ++i) {
    EXPECT_EQ(same_bytes(before[i], behind[i]), i < kFrozen) << "copy " << i;
  }
  policy.initialise(6, {});
  const std::vector<at::Tensor> anew = copies_now(policy);
  for (size_t i = 0; i < anew.size(); ++i) {
    EXPECT_FALSE(same_bytes(before[i], anew[i])) << "copy " << i;
  }
}

// The features depend on the batch only: neither on where they are made nor on the steps before.
TEST_P(GrootFp8, TheFrozenPartGivesTheSameBitsBesideTheStep) {
  GrootPolicy policy(frozen_below(GetParam()), build_of(Patterns{"*"}));
  ASSERT_TRUE(policy.has_frozen_part());
  const at::Tensor first = policy.frozen_features(*batch_of(policy, 40));
  train(policy, 3);
  const auto batch = batch_of(policy, 40);
  const at::Tensor features = policy.frozen_features(*batch);
  EXPECT_TRUE(at::equal(features, first));
  policy.begin_step();
  const at::NoGradGuard no_grad;
  const at::Tensor inside = policy.loss(*batch).loss;
  const at::Tensor beside = policy.loss(*policy.behind_frozen_part(*batch, features)).loss;
  EXPECT_TRUE(at::equal(inside, beside));
}

TEST_P(GrootFp8, ScalesAreSavedAndResumed) {
  GrootPolicy one(frozen_below(GetParam()), build_of(Patterns{"*"}));
  train(one, 3);
  std::vector<NamedTensor> saved;
  std::set<std::string> names;
  for (const NamedTensor& entry : one.training_state()) {
    saved.push_back({entry.name, entry.tensor.clone()});
    names.insert(entry.name);
  }
  EXPECT_TRUE(names.contains("fp8.scales"));
  EXPECT_EQ(one.shared_maxima().size(), 1U);
  GrootPolicy two(frozen_below(GetParam()), build_of(Patterns{"*"}));
  {
    const at::NoGradGuard no_grad;
    const std::vector<ParamInfo> from = one.parameters(), to = two.parameters();
    for (size_t i = 0; i < from.size(); ++i) {
      at::Tensor tensor = to[i].tensor;
      tensor.copy_(from[i].tensor);
    }
  }
  two.load_training_state(saved);
  EXPECT_EQ(train(two, 3, 3), train(one, 3, 3));
  GrootPolicy plain(frozen_below(GetParam()), build_of(std::nullopt));
  expect_error<CheckpointError>([&] { plain.load_training_state(saved); }, {"train.fp8"});
  expect_error<CheckpointError>([&] { two.load_training_state(plain.training_state()); },
                                {"train.fp8"});
  GrootPolicy fewer(frozen_below(GetParam()), build_of(Patterns{"dit.*"}));
  expect_error<CheckpointError>([&] { fewer.load_training_state(saved); }, {"fp8 states"});
}

TEST_P(GrootFp8, SamplingNeedsNoStepBefore) {
  GrootPolicy plain(config_of(GetParam()), build_of(std::nullopt));
  GrootPolicy fp8(config_of(GetParam()), build_of(Patterns{"*"}));
  const at::NoGradGuard no_grad;
  const at::Tensor expected = plain.sample(*batch_of(plain, 40), {3, 0});
  const at::Tensor got = fp8.sample(*batch_of(fp8, 40), {3, 0});
  const double error = got.sub(expected).norm().item<double>() / expected.norm().item<double>();
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 0.1);
}

TEST_P(GrootFp8, EveryLayerIsMeasured) {
  BuildOptions build = build_of(Patterns{"*"}, true);
  build.fp8->measure = true;
  build.fp8->delayed = false;
  GrootPolicy policy(frozen_below(GetParam()), build);
  policy.begin_step();
  policy.loss(*batch_of(policy, 40)).loss.backward();
  const std::vector<nn::Fp8Measurement> all = policy.fp8_measurements();
  EXPECT_EQ(all.size(), policy.model().fp8()->chosen().size());
  for (const nn::Fp8Measurement& m : all) {
    EXPECT_GT(m.output_error, 0) << m.layer;
    EXPECT_LT(m.output_error, 0.1) << m.layer;
    // Gradients of queries and keys are sums that nearly cancel where attention is as even as it
    // is with these random weights.
    const bool even = m.layer.starts_with("dit.") && m.layer.find('q') != std::string::npos;
    EXPECT_GT(m.weight_grad_cos, even ? 0.5 : 0.98) << m.layer;
  }
}

TEST_P(GrootFp8, ShardedWeightsAreRefused) {
  BuildOptions build = build_of(Patterns{"*"});
  build.allocate = build.initialise = false;
  expect_error<ConfigError>([&] { GrootPolicy(config_of(GetParam()), build); },
                            {"train.fp8", "sharded"});
}

INSTANTIATE_TEST_SUITE_P(All, GrootFp8, ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

class GrootFp8Gpu : public ::testing::TestWithParam<GrootVersion> {
 protected:
  void SetUp() override {
    if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_P(GrootFp8Gpu, LossesStayNearThoseOfBf16) {
  for (const GrootConfig& config : {trained_whole(GetParam()), frozen_below(GetParam())}) {
    BuildOptions base = build_of(std::nullopt, true), build = build_of(Patterns{"*"}, true);
    for (BuildOptions* options : {&base, &build}) {
      options->device = at::kCUDA;
      options->dtype = at::kBFloat16;
      options->fused.attention = true;
    }
    GrootPolicy plain(config, base), fp8(config, build);
    const std::vector<double> expected = train(plain, 8), got = train(fp8, 8);
    EXPECT_NE(got, expected);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], expected[i], 0.03 * expected[i]) << "step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GrootFp8Gpu,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

}  // namespace
}  // namespace longship::models
