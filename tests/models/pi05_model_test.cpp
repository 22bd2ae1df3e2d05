// Invariances of the network: packing, order, masks, precision, full size on the meta device.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"

#include "models/pi05/cost.h"
#include "models/pi05/mapping.h"
#include "models/pi05/plan.h"
#include "models/tiny_case.h"

namespace longship::models {
namespace {

using testing::PaddedInputs;
using testing::relative;
using testing::tiny_inputs;
using testing::tiny_policy;

at::Tensor velocity(Pi05Policy& policy, const PaddedInputs& inputs) {
  at::NoGradGuard no_grad;
  return policy.flow(inputs.pack_batch()).v_t;
}

TEST(Pi05Model, SampleAloneEqualsSampleInABatch) {
  const auto policy = tiny_policy();
  const PaddedInputs all = tiny_inputs();
  const at::Tensor together = velocity(*policy, all);
  for (int64_t b = 0; b < 4; ++b) {
    const auto row = [&](const at::Tensor& t) { return t.narrow(0, b, 1); };
    const PaddedInputs one{row(all.images),        row(all.image_masks), row(all.tokens),
                           row(all.token_mask),    row(all.state),       row(all.actions),
                           row(all.action_is_pad), row(all.noise),       row(all.time)};
    EXPECT_LT(relative(velocity(*policy, one), row(together)), 1e-5) << "sample " << b;
  }
}

TEST(Pi05Model, OrderOfSamplesDoesNotMatter) {
  const auto policy = tiny_policy();
  const PaddedInputs all = tiny_inputs();
  const at::Tensor order = at::tensor({2, 0, 3, 1}, at::kLong);
  const auto rows = [&](const at::Tensor& t) { return t.index_select(0, order); };
  const PaddedInputs mixed{rows(all.images),        rows(all.image_masks), rows(all.tokens),
                           rows(all.token_mask),    rows(all.state),       rows(all.actions),
                           rows(all.action_is_pad), rows(all.noise),       rows(all.time)};
  EXPECT_LT(relative(velocity(*policy, mixed), rows(velocity(*policy, all))), 1e-5);
}

TEST(Pi05Model, MaskedPicturesAndTokensHaveNoInfluence) {
  const auto policy = tiny_policy();
  const PaddedInputs inputs = tiny_inputs();
  PaddedInputs noisy = inputs;
  noisy.images = inputs.images.clone();
  noisy.images[2][1].fill_(0.9f);  // sample 2 has slot 0 only
  noisy.tokens = inputs.tokens.clone();
  noisy.tokens.masked_fill_(inputs.token_mask.logical_not(), 55);
  EXPECT_TRUE(at::equal(velocity(*policy, noisy), velocity(*policy, inputs)));
}

TEST(Pi05Model, ThirdSlotMaskedEverywhereEqualsTwoSlots) {
  const auto policy = tiny_policy("pi05/tiny_two_cameras");
  const PaddedInputs three = tiny_inputs("pi05/tiny_two_cameras");
  PaddedInputs two = three;
  two.images = three.images.narrow(1, 0, 2);
  two.image_masks = three.image_masks.narrow(1, 0, 2);
  EXPECT_TRUE(at::equal(velocity(*policy, two), velocity(*policy, three)));
}

TEST(Pi05Model, SampleWithoutAnyPrefixTokenIsFinite) {
  const auto policy = tiny_policy();
  PaddedInputs inputs = tiny_inputs();
  inputs.image_masks = inputs.image_masks.clone();
  inputs.token_mask = inputs.token_mask.clone();
  inputs.image_masks[1].fill_(false);
  inputs.token_mask[1].fill_(false);
  const Pi05Batch batch = inputs.pack_batch();
  at::Tensor loss = policy->loss(batch, {}).loss;
  loss.backward();
  EXPECT_TRUE(at::isfinite(loss).item<bool>());
  for (const ParamInfo& info : policy->parameters()) {
    if (info.role != ParamRole::kTrainable) continue;
    ASSERT_TRUE(info.tensor.grad().defined()) << info.name;
    EXPECT_TRUE(at::isfinite(info.tensor.grad()).all().item<bool>()) << info.name;
  }
  // The other samples do not notice.
  const at::Tensor plain = velocity(*policy, tiny_inputs()), changed = velocity(*policy, inputs);
  EXPECT_LT(relative(changed[0], plain[0]), 1e-5);
  EXPECT_LT(relative(changed[3], plain[3]), 1e-5);
}

TEST(Pi05Model, BatchWithoutPicturesOrTextStillGivesEveryGradient) {
  const auto policy = tiny_policy();
  for (const bool text : {true, false}) {
    PaddedInputs inputs = tiny_inputs();
    inputs.image_masks = at::zeros(inputs.image_masks.sizes(), at::kBool);
    if (!text) inputs.token_mask = at::zeros(inputs.token_mask.sizes(), at::kBool);
    at::Tensor loss = policy->loss(inputs.pack_batch(), {}).loss;
    loss.backward();
    for (ParamInfo& info : policy->parameters()) {
      if (info.role != ParamRole::kTrainable) continue;
      ASSERT_TRUE(info.tensor.grad().defined()) << info.name;
      if (info.name.find("vision_tower") != std::string::npos) {
        EXPECT_EQ(info.tensor.grad().abs().max().item<double>(), 0.0) << info.name;
      }
      info.tensor.mutable_grad() = at::Tensor();
    }
  }
}

TEST(Pi05Model, DoublePrecisionAgreesWithFp32) {
  const auto single = tiny_policy();
  const auto wide = tiny_policy("pi05/tiny_train", {}, at::kDouble);
  EXPECT_LT(relative(velocity(*single, tiny_inputs()), velocity(*wide, tiny_inputs())), 5e-6);
}

TEST(Pi05Model, Bf16StorageFollowsTheTable) {
  Pi05Config config;
  config.size = "tiny";
  const auto dtype = [&](const std::string& parity, const char* name) {
    config.parity = parity;
    return pi05_parameter_dtype(config, at::kBFloat16, name);
  };
  const std::string vlm = "paligemma_with_expert.paligemma.model.";
  const std::string fc1 = vlm + "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight";
  EXPECT_EQ(dtype("openpi", fc1.c_str()), at::kBFloat16);
  EXPECT_EQ(dtype("loongforge", fc1.c_str()), at::kFloat);
  for (const char* parity : {"openpi", "loongforge"}) {
    EXPECT_EQ(dtype(parity, (vlm + "language_model.norm.weight").c_str()), at::kFloat);
    EXPECT_EQ(dtype(parity, (vlm + "language_model.layers.0.mlp.up_proj.weight").c_str()),
              at::kBFloat16);
    EXPECT_EQ(dtype(parity, "action_in_proj.weight"), at::kFloat);
    EXPECT_EQ(dtype(parity,
                    "paligemma_with_expert.gemma_expert.model.layers.0.input_layernorm.dense.bias"),
              at::kFloat);
    EXPECT_EQ(dtype(parity, std::string(kPi05Embedding).c_str()), at::kBFloat16);
  }
}

TEST(Pi05Model, Bf16PresetsStayCloseToFp32) {
  const at::Tensor ref = velocity(*tiny_policy(), tiny_inputs());
  for (const char* parity : {"openpi", "loongforge"}) {
    const auto policy = tiny_policy(
        "pi05/tiny_train", [&](Pi05Config& c) { c.parity = parity; }, at::kBFloat16);
    EXPECT_LT(relative(velocity(*policy, tiny_inputs()), ref), 0.08) << parity;
  }
}

Pi05Config full_config() {
  Pi05Config config;
  config.size = "full";
  return config;
}

TEST(Pi05Full, HasThePublicSizeOnMeta) {
  Pi05Policy policy(full_config(), {.device = at::kMeta, .dtype = at::kFloat, .seed = 0});
  EXPECT_EQ(policy.module().num_elements(), 3353433872);
  const auto exported = policy.export_weights({});
  EXPECT_EQ(exported.size(), 812u);
  int64_t elements = 0;
  for (const NamedTensor& t : exported) elements += t.tensor.numel();
  EXPECT_EQ(elements, 3616757520);
}

TEST(Pi05Full, Pi0HasItsTensorCount) {
  Pi05Config config = full_config();
  config.variant = "pi0";
  Pi05Policy policy(config, {.device = at::kMeta, .dtype = at::kFloat, .seed = 0});
  EXPECT_EQ(policy.export_weights({}).size(), 777u);
}

TEST(Pi05Full, ForwardAndLossHaveTheRightShapesOnMeta) {
  Pi05Policy policy(full_config(), {.device = at::kMeta, .dtype = at::kBFloat16, .seed = 0});
  Pi05Batch batch;
  const at::TensorOptions meta = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  batch.sample_ids = {0, 1};
  batch.images_per_sample = {2, 1};
  batch.tokens_per_sample = {60, 45};
  batch.images = at::empty({3, 3, 224, 224}, meta);
  batch.token_ids = at::empty({105}, meta.dtype(at::kLong));
  batch.state = at::empty({2, 32}, meta);
  batch.actions = at::empty({2, 50, 32}, meta);
  batch.action_is_pad = at::empty({2, 50}, meta.dtype(at::kBool));
  batch.noise = at::empty({2, 50, 32}, meta);
  batch.time = at::empty({2}, meta);
  const Pi05Flow flow = policy.flow(batch);
  EXPECT_EQ(flow.v_t.sizes(), (std::vector<int64_t>{2, 50, 32}));
  EXPECT_EQ(flow.v_t.scalar_type(), at::kFloat);
  EXPECT_EQ(policy.loss(batch).loss.dim(), 0);
}

TEST(Pi05Cost, MatchesTheTableOfTheReference) {
  Pi05Config config = full_config();
  EXPECT_NEAR(pi05_reference_flops(config, 2).total() / 1e9, 3379.5, 1.0);
  EXPECT_NEAR(pi05_reference_flops(config, 3).total() / 1e9, 4681.5, 1.0);
  EXPECT_NEAR(3 * pi05_forward_flops(config, 2, 60).total() / 1e12, 7.99, 0.02);
}

TEST(Pi05Plan, EveryParameterIsInExactlyOneUnit) {
  const auto policy = tiny_policy();
  size_t count = 0;
  for (const Pi05Unit& unit : pi05_units(policy->model())) count += unit.parameters.size();
  EXPECT_EQ(count, policy->parameters().size());
}

// Watches which unit is open; the names and the order of the units are those of the plan.
struct UnitOrder : nn::UnitHooks {
  std::vector<std::string> forward, backward;
  void before_forward(std::string_view unit) override { forward.emplace_back(unit); }
  void after_forward(std::string_view, bool, bool) override {}
  void before_backward(std::string_view unit) override { backward.emplace_back(unit); }
  void after_backward(std::string_view) override {}
};

TEST(Pi05Plan, UnitsRunInTheOrderOfThePlanAndBackwardInReverse) {
  for (const char* golden : {"pi05/tiny_train", "pi05/pi0_tiny"}) {
    const auto policy = tiny_policy(golden);
    std::vector<std::string> planned;
    for (const Pi05Unit& unit : pi05_units(policy->model())) {
      if (unit.name != nn::kRootUnit && unit.name != nn::kUnreadUnit) planned.push_back(unit.name);
    }
    UnitOrder order;
    policy->attach(&order);
    policy->loss(tiny_inputs(golden).pack_batch(), {}).loss.backward();
    policy->attach(nullptr);
    ASSERT_FALSE(order.forward.empty());
    EXPECT_EQ(order.forward.front(), nn::kRootUnit);
    order.forward.erase(order.forward.begin());
    EXPECT_EQ(order.forward, planned);
    std::reverse(planned.begin(), planned.end());
    EXPECT_EQ(order.backward, planned);
  }
}

TEST(Pi05Plan, NoGradientPassesThroughUnitsBeforeAnythingThatIsTrained) {
  const auto forward_only = [](const std::string& freeze) {
    const auto policy = tiny_policy("pi05/tiny_train", [&](Pi05Config& c) { c.freeze = {freeze}; });
    std::set<std::string> out;
    for (const ParamInfo& info : policy->parameters()) {
      if (info.forward_only && info.unit != nn::kUnreadUnit) {
        out.insert(info.unit.substr(0, info.unit.find('.')));
      }
    }
    return out;
  };
  EXPECT_EQ(forward_only("vision"), std::set<std::string>{"vision"});
  EXPECT_EQ(forward_only("expert_only"), (std::set<std::string>{"prefix", "vision"}));
  EXPECT_EQ(forward_only("action_in_proj"), std::set<std::string>{});
}

}  // namespace
}  // namespace longship::models
