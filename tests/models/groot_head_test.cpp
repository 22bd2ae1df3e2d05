// The action heads of GR00T N1.6 and N1.7 against recorded numbers, and every way of computing one
// against the plain way.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "groot_head_case.h"
#include "io/tensor_io.h"
#include "nn/tensor_math.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::models {
namespace {

using longship::testing::expect_error;
using longship::testing::golden_path;
using nlohmann::json;
using namespace testing;  // groot_head_case
using Tensors = HeadTensors;
using Case = HeadCase;

void set_one_embodiment(Case& c) {
  c.inputs["embodiment_id"] = at::full({c.in("state").size(0)}, 3, at::kLong);
}

class GrootHeadGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(GrootHeadGolden, EveryNumber) {
  Case c(GetParam());
  Tensors ours;
  c.head.tap = [&](std::string_view name, const at::Tensor& t) {
    ours[std::string(name)] = t.detach();
  };
  const GrootFlow out = c.flow();
  c.head.tap = {};
  out.loss.backward();
  ours["loss"] = out.loss.detach().view({1});
  ours["action_loss"] = out.action_loss.detach();
  ours["pred"] = out.pred.detach();
  ours["t"] = out.time;
  ours["t_discretized"] = out.bucket;
  for (auto& [name, parameter] : c.head.named_parameters()) {
    ours["grad." + name] = Case::grad_of(parameter);
  }
  ours["grad_input.backbone_features"] = Case::grad_of(c.features);

  const Tensors expected = io::load_tensors(golden_path(GetParam()) / "expected.safetensors");
  EXPECT_GT(expected.size(), 100u);
  for (const auto& [name, ref] : expected) {
    ASSERT_TRUE(ours.contains(name)) << name;
    ASSERT_EQ(ours.at(name).sizes(), ref.sizes()) << name;
    if (zero_in_exact_arithmetic(name)) {
      EXPECT_LT(ours.at(name).abs().max().item<double>(), 1e-6) << name;
    } else if (name == "t_discretized") {
      EXPECT_TRUE(at::equal(ours.at(name), ref));
    } else {
      EXPECT_LE(head_error(ours.at(name), ref), name.starts_with("grad") ? 1e-4 : 3e-5) << name;
    }
  }
}

TEST_P(GrootHeadGolden, UnusedEmbodimentsHaveExactlyNoGradient) {
  Case c(GetParam());
  const Tensors ours = c.outcome();
  std::set<int64_t> used;
  const at::Tensor ids = c.in("embodiment_id");
  for (int64_t i = 0; i < ids.size(0); ++i) used.insert(ids[i].item<int64_t>());
  const at::Tensor& grad = ours.at("grad.action_decoder.layer2.W");
  for (int64_t e = 0; e < c.sizes.embodiments; ++e) {
    EXPECT_EQ(grad[e].abs().max().item<float>() > 0, used.contains(e)) << e;
  }
}

TEST_P(GrootHeadGolden, Samples) {
  const at::NoGradGuard no_grad;
  const Case c(GetParam());
  const Tensors expected = io::load_tensors(golden_path(GetParam()) / "sample.safetensors");
  const GrootVlContext context = c.context();
  const at::Tensor plain =
      c.head.integrate(context, c.in("state"), c.in("embodiment_id"), expected.at("noise"));
  EXPECT_LE(head_error(plain, expected.at("action_pred")), 3e-5);
  if (!expected.contains("rtc_action_pred")) return;
  const json options = read_golden_json(std::string(GetParam()) + "/inputs.json").at("rtc_options");
  const GrootRtc rtc{expected.at("rtc_prev_action"), options.at("action_horizon"),
                     options.at("rtc_overlap_steps"), options.at("rtc_frozen_steps"),
                     options.at("rtc_ramp_rate")};
  const at::Tensor chunked = c.head.integrate(context, c.in("state"), c.in("embodiment_id"),
                                              expected.at("noise"), {}, &rtc);
  EXPECT_LE(head_error(chunked, expected.at("rtc_action_pred")), 3e-5);
}

TEST_P(GrootHeadGolden, OneEmbodimentIsOneProduct) {
  Case each(GetParam()), all(GetParam());
  set_one_embodiment(each);
  set_one_embodiment(all);
  expect_close(all.outcome({.one_embodiment = true}), each.outcome(), 1e-5);
  const at::NoGradGuard no_grad;
  const at::Tensor fast =
      all.head.integrate(all.context(), all.in("state"), all.in("embodiment_id"),
                         all.in("sample_noise"), {.one_embodiment = true});
  const at::Tensor slow = each.head.integrate(each.context(), each.in("state"),
                                              each.in("embodiment_id"), each.in("sample_noise"));
  EXPECT_LT(head_error(fast, slow), 1e-5);
}

TEST_P(GrootHeadGolden, StackedAndFusedProductsAreTheSame) {
  Case plain(GetParam());
  const Tensors expected = plain.outcome();
  for (bool nn::Fused::*one : {&nn::Fused::stacked, &nn::Fused::norms, &nn::Fused::activations}) {
    nn::Fused fused;
    fused.*one = true;
    Case other(GetParam(), fused);
    expect_close(other.outcome(), expected, 2e-5);
  }
}

TEST_P(GrootHeadGolden, StacksLieBehindEachOther) {
  const Case c(GetParam());
  const std::vector<std::vector<std::string>> stacks = c.head.stacks();
  size_t largest = 0;
  for (const auto& stack : stacks) largest = std::max(largest, stack.size());
  EXPECT_EQ(largest, static_cast<size_t>(c.sizes.depth + 1));
  // Weights and biases: of the modulations, and of keys and values or queries, keys and values.
  EXPECT_EQ(stacks.size(), static_cast<size_t>(2 + 2 * (c.sizes.depth + c.sizes.vl_depth)));
}

TEST_P(GrootHeadGolden, DropoutAsksEverySiteInOrder) {
  Case c(GetParam());
  std::vector<int64_t> sites, widths;
  GrootHeadCall call;
  call.dropout = [&](const at::Tensor& x, int64_t site) {
    sites.push_back(site);
    widths.push_back(x.size(-1));
    return x;
  };
  const Tensors kept = c.outcome(call);
  ASSERT_EQ(static_cast<int64_t>(sites.size()), c.head.dropout_sites());
  for (size_t i = 0; i < sites.size(); ++i) {
    EXPECT_EQ(sites[i], static_cast<int64_t>(i));
    const bool vl = sites[i] < kGrootSitesPerBlock * c.sizes.vl_depth;
    const int64_t width = vl ? c.sizes.backbone_width : c.sizes.width;
    EXPECT_EQ(widths[i], i % 4 == 2 ? 4 * width : width);
  }
  Case without(GetParam());
  expect_equal(kept, without.outcome());
  Case dropped(GetParam());
  EXPECT_GT(head_error(dropped.outcome({.dropout = drop_drawn}).at("pred"), kept.at("pred")), 1e-3);
}

TEST_P(GrootHeadGolden, WithoutFinalDropoutTwoSitesAreGone) {
  Case c(GetParam());
  GrootHeadSizes sizes = c.sizes;
  sizes.final_dropout = sizes.vl_final_dropout = false;
  GrootActionHead head(sizes, {});
  head.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  head.for_each_parameter([](const std::string&, at::Tensor& t) { t.fill_(0.01); });
  std::vector<int64_t> sites;
  GrootHeadCall call;
  call.dropout = [&](const at::Tensor& x, int64_t site) {
    sites.push_back(site % 2);
    return x;
  };
  head.flow(head.encode_context(c.features, c.flag("backbone_attention_mask"), c.flag("image_mask"),
                                call),
            c.flow_inputs(), call);
  EXPECT_EQ(sites, std::vector<int64_t>(static_cast<size_t>(head.dropout_sites() / 2), 0));
}

TEST_P(GrootHeadGolden, RecomputedUnitsGiveTheSameBits) {
  Case kept(GetParam()), again(GetParam());
  std::set<std::string> asked;
  again.head.recomputed = [&](std::string_view unit) {
    asked.insert(std::string(unit));
    return true;
  };
  const GrootHeadCall call{.dropout = drop_drawn};
  expect_equal(again.outcome(call), kept.outcome(call));
  const std::vector<std::string> units = again.head.units();
  EXPECT_EQ(asked, std::set<std::string>(units.begin(), units.end()));
}

/// Notes the order of the calls.
struct Notes : nn::UnitHooks {
  void before_forward(std::string_view unit) override { forward.emplace_back(unit); }
  void after_forward(std::string_view, bool, bool) override {}
  void before_backward(std::string_view unit) override { backward.emplace_back(unit); }
  void after_backward(std::string_view) override {}
  std::vector<std::string> forward, backward;
};

TEST_P(GrootHeadGolden, UnitsRunOnceInOrderAndCoverTheParameters) {
  Case watched(GetParam()), plain(GetParam());
  Notes notes;
  watched.head.hooks = &notes;
  expect_equal(watched.outcome(), plain.outcome());
  const std::vector<std::string> units = watched.head.units();
  EXPECT_EQ(notes.forward, units);
  EXPECT_EQ(notes.backward, std::vector<std::string>(units.rbegin(), units.rend()));
  std::set<std::string> named;
  for (const auto& [name, parameter] : watched.head.named_parameters()) {
    named.insert(groot_head_unit(name));
  }
  std::set<std::string> expected(units.begin(), units.end());
  expected.insert(std::string(nn::kRootUnit));
  EXPECT_EQ(named, expected);
}

TEST_P(GrootHeadGolden, Bf16ProductsStayClose) {
  Case exact(GetParam()), rounded(GetParam(), {}, at::kBFloat16);
  // N1.6 rounds the time too: this one moves by 0.0001 and keeps its bucket.
  exact.inputs["beta_sample"] = at::full({4}, 0.4994);
  rounded.inputs["beta_sample"] = at::full({4}, 0.4994);
  const GrootFlow a = exact.flow(), b = rounded.flow();
  EXPECT_EQ(b.pred.scalar_type(), at::kFloat);
  EXPECT_EQ(b.loss.scalar_type(), at::kFloat);
  EXPECT_LT(head_error(b.loss.to(at::kFloat), a.loss), 2e-2);
  EXPECT_LT(head_error(b.pred, a.pred), 8e-2);
  b.loss.backward();
  for (auto& [name, parameter] : rounded.head.named_parameters()) {
    EXPECT_EQ(Case::grad_of(parameter).scalar_type(), at::kFloat) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GrootHeadGolden,
                         ::testing::Values("groot_n16/dit_head", "groot_n17/dit_head"));

constexpr const char* kN17 = "groot_n17/dit_head";

TEST(CategoryLinear, ProductsAndGradientsPerSample) {
  nn::CategoryLinear layer(3, 2, 4);
  layer.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  for (auto& [name, t] : layer.named_parameters()) {
    fill_normal(make_key(5, RngStream::kTest, hash_name(name)),
                std::span(t.mutable_data_ptr<float>(), static_cast<size_t>(t.numel())));
    t.set_requires_grad(true);
  }
  at::Tensor x = at::zeros({3, 2, 2});
  fill_normal(make_key(6, RngStream::kTest), std::span(x.mutable_data_ptr<float>(), 12));
  at::Tensor ids = at::full({3}, 2, at::kLong);
  ids[1].fill_(0);
  const at::Tensor y = layer.forward(x, {ids}, at::kFloat);
  const at::Tensor own = x[2].matmul(layer.weight[2]) + layer.bias[2];
  EXPECT_LT(head_error(y[2].detach(), own.detach()), 1e-6);
  y.sum().backward();
  const at::Tensor columns = x.sum(1).unsqueeze(-1).expand({3, 2, 4});  // of every sample
  EXPECT_LT(head_error(layer.weight.grad()[2], columns[0] + columns[2]), 1e-6);
  EXPECT_LT(head_error(layer.weight.grad()[0], columns[1]), 1e-6);
  EXPECT_EQ(layer.weight.grad()[1].abs().max().item<float>(), 0.0f);
  EXPECT_EQ(layer.bias.grad()[2][0].item<float>(), 4.0f);
  EXPECT_EQ(layer.forward(x, {ids}, at::kBFloat16).scalar_type(), at::kFloat);
  expect_error<ShapeError>([&] { layer.forward(x.narrow(2, 0, 1), {ids}, at::kFloat); },
                           {"[B, T, 2]", "the last of 1"});
  expect_error<ShapeError>([&] { layer.forward(x, {ids.narrow(0, 0, 2)}, at::kFloat); },
                           {"3 samples", "2 elements"});
}

TEST(GrootHead, N16RoundsTheTimeInBf16) {
  const Case c("groot_n16/dit_head", {}, at::kBFloat16);
  GrootFlowInputs inputs = c.flow_inputs();
  inputs.beta = at::full({4}, 0.3);
  const GrootFlow flow = c.head.flow(c.context(), inputs);
  // 1 - 0.3 becomes 0.69921875, times 0.999 0.69921875 again, times 1000 700 instead of 699.
  EXPECT_EQ(flow.time.scalar_type(), at::kBFloat16);
  EXPECT_EQ(flow.bucket[0].item<int64_t>(), 700);
  EXPECT_EQ(flow.loss.scalar_type(), at::kFloat);
}

TEST(GrootHead, AttentionWithoutAnyRowGivesZeros) {
  // Sample 2 has no picture: what its image blocks attend to must not be its text or padding.
  Case c(kN17);
  c.inputs["image_mask"] = c.in("image_mask").clone();
  c.inputs["image_mask"][2].zero_();
  const GrootVlContext context = c.context();
  ASSERT_TRUE(context.image.present.defined());
  EXPECT_EQ(context.image.present[2].item<float>(), 0.0f);
  EXPECT_EQ(context.image.present[1].item<float>(), 1.0f);
  GrootBlock block({.width = 30, .context = 22, .heads = 3, .head_dim = 10});
  block.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  block.for_each_parameter([](const std::string&, at::Tensor& t) { t.fill_(0.05); });
  block.attn1.to_q.weight.narrow(0, 0, 7).fill_(-0.3);
  const at::Tensor x = c.in("noise").flatten(1).narrow(1, 0, 30).unsqueeze(1);
  const GrootModulation none{at::zeros({1, 30}), at::zeros({1, 30})};
  const auto output = [&](const at::Tensor& rows) {
    const std::vector<at::Tensor> kv = block.keys_values(rows, {});
    return block.forward(x, none, kv[0], kv[1], context.image, {}, 0).detach();
  };
  const at::Tensor a = output(context.image.rows), b = output(context.image.rows * 2.0);
  EXPECT_TRUE(at::equal(a[2], b[2]));
  EXPECT_FALSE(at::equal(a[1], b[1]));
  for (const auto& [name, tensor] : c.outcome()) {
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
}

TEST(GrootHead, KnownPresenceChangesNothing) {
  Case c(kN17), known(kN17);
  expect_equal(known.outcome({.text_and_images = true}), c.outcome());
}

TEST(GrootHead, PlainDitReadsEveryRowWithoutMask) {
  Case c(kN17);
  GrootHeadSizes sizes = c.sizes;
  sizes.alternate_vl = false;
  sizes.interleave_self_attention = false;
  sizes.vl_depth = 0;
  GrootActionHead head(sizes, {});
  const GrootDitSizes dit{.width = 30,
                          .context = 22,
                          .out = 26,
                          .heads = 3,
                          .head_dim = 10,
                          .depth = 7,
                          .interleave_self_attention = false,
                          .alternate_vl = false};
  EXPECT_TRUE(GrootDit(dit).is_cross(1));
  head.materialise(at::kCPU, [](std::string_view) { return at::kFloat; });
  for (auto& [name, t] : head.named_parameters()) {
    fill_normal(make_key(3, RngStream::kTest, hash_name(name)),
                std::span(t.mutable_data_ptr<float>(), static_cast<size_t>(t.numel())));
    t.mul_(0.1);
  }
  const at::Tensor valid = c.flag("backbone_attention_mask");
  const GrootVlContext all = head.encode_context(c.features, valid, c.flag("image_mask"));
  EXPECT_FALSE(all.all.mask.defined());
  const at::Tensor a = head.flow(all, c.flow_inputs()).pred.detach();
  const at::Tensor other =
      head.encode_context(c.features, at::zeros_like(valid), at::zeros_like(valid)).all.rows;
  EXPECT_TRUE(at::equal(all.all.rows, other));
  const at::Tensor b =
      head.integrate(all, c.in("state"), c.in("embodiment_id"), c.in("sample_noise"));
  EXPECT_TRUE(a.isfinite().all().item<bool>() && b.isfinite().all().item<bool>());
}

TEST(GrootHead, IntegrationEqualsVelocitiesStepByStep) {
  const at::NoGradGuard no_grad;
  const Case c(kN17);
  const GrootVlContext context = c.context();
  at::Tensor x = c.in("sample_noise");
  for (int64_t s = 0; s < 4; ++s) {
    const at::Tensor bucket = at::full({4}, s * 250, at::kLong);
    x = x + c.head.velocity(context, c.in("state"), x, bucket, c.in("embodiment_id")) * 0.25;
  }
  const at::Tensor once =
      c.head.integrate(context, c.in("state"), c.in("embodiment_id"), c.in("sample_noise"));
  EXPECT_LT(head_error(once, x), 1e-5);
}

TEST(GrootHead, FrozenRowsAreTheEndOfThePreviousChunk) {
  const at::NoGradGuard no_grad;
  const Case c(kN17);
  GrootRtc rtc{c.in("action"), 5, 3, 3, 2.0};
  const at::Tensor out = c.head.integrate(c.context(), c.in("state"), c.in("embodiment_id"),
                                          c.in("sample_noise"), {}, &rtc);
  EXPECT_TRUE(at::equal(out.narrow(1, 0, 3), c.in("action").narrow(1, 2, 3)));
  const auto attempt = [&](auto change) {
    GrootRtc bad = rtc;
    change(bad);
    c.head.integrate(c.context(), c.in("state"), c.in("embodiment_id"), c.in("sample_noise"), {},
                     &bad);
  };
  expect_error<ConfigError>([&] { attempt([](GrootRtc& r) { r.overlap_steps = 6; }); },
                            {"rtc_overlap_steps is 6", "5"});
  expect_error<ConfigError>([&] { attempt([](GrootRtc& r) { r.frozen_steps = 4; }); },
                            {"rtc_frozen_steps is 4", "3"});
  expect_error<ConfigError>([&] { attempt([](GrootRtc& r) { r.action_horizon = 7; }); },
                            {"action_horizon is 7", "6 steps"});
}

TEST(GrootHead, MaskTokenExistsWhereTheStateCanBeLeftOut) {
  const auto has_token = [](int64_t version, double probability) {
    GrootHeadSizes sizes;
    sizes.version = version;
    sizes.state_dropout = probability;
    const GrootActionHead head(sizes, {});
    for (const auto& [name, parameter] : head.named_parameters()) {
      if (name == "mask_token") return true;
    }
    return false;
  };
  EXPECT_TRUE(has_token(16, 0.3));
  EXPECT_FALSE(has_token(16, 0.0));
  EXPECT_FALSE(has_token(17, 0.3));
}

TEST(GrootHead, PublicSizes) {
  GrootHeadSizes sizes;  // N1.7
  const GrootActionHead head(sizes, {});
  std::map<std::string, std::vector<int64_t>> shapes;
  int64_t dit = 0, vl = 0;
  for (const auto& [name, t] : head.named_parameters()) {
    shapes[name] = t.sizes().vec();
    if (name.starts_with("model.")) dit += t.numel();
    if (name.starts_with("vl_self_attention.")) vl += t.numel();
  }
  EXPECT_EQ(dit, 1091722240);
  EXPECT_EQ(vl, 201433088);
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("model.transformer_blocks.30.attn1.to_k.weight"), (Shape{1536, 2048}));
  EXPECT_EQ(shapes.at("model.transformer_blocks.31.attn1.to_v.weight"), (Shape{1536, 1536}));
  EXPECT_EQ(shapes.at("action_encoder.W2.W"), (Shape{32, 3072, 1536}));
  EXPECT_EQ(shapes.at("action_decoder.layer2.b"), (Shape{32, 132}));
}

TEST(GrootHead, ShapesOnTheMetaDevice) {
  const at::NoGradGuard no_grad;
  const Case c(kN17);
  const GrootActionHead head(c.sizes, {});
  const auto meta = [](const at::Tensor& t) { return t.to(at::kMeta); };
  GrootFlowInputs inputs = c.flow_inputs();
  for (at::Tensor* t : {&inputs.state, &inputs.actions, &inputs.action_mask, &inputs.noise,
                        &inputs.beta, &inputs.embodiment, &inputs.left_out}) {
    *t = meta(*t);
  }
  const GrootVlContext context = head.encode_context(
      meta(c.features), meta(c.flag("backbone_attention_mask")), meta(c.flag("image_mask")));
  const GrootFlow flow = head.flow(context, inputs);
  EXPECT_TRUE(flow.loss.is_meta());
  EXPECT_EQ(flow.pred.sizes(), c.in("action").sizes());
  EXPECT_EQ(head.integrate(context, inputs.state, inputs.embodiment, inputs.noise).sizes(),
            c.in("action").sizes());
}

TEST(GrootHead, SizesThatDoNotFit) {
  GrootHeadSizes sizes;
  sizes.heads = 31;
  expect_error<ConfigError>([&] { sizes.check(); }, {"1536", "31", "48"});
  sizes = {};
  sizes.version = 15;
  expect_error<ConfigError>([&] { sizes.check(); }, {"15"});
  sizes = {};
  sizes.horizon = 1025;
  expect_error<ConfigError>([&] { sizes.check(); }, {"1025", "1024"});
  sizes = {};
  sizes.interleave_self_attention = false;
  expect_error<ConfigError>([&] { sizes.check(); }, {"interleave_self_attention"});
  Case c(kN17);
  GrootFlowInputs inputs = c.flow_inputs();
  inputs.actions = inputs.actions.narrow(1, 0, 5);
  expect_error<ShapeError>([&] { c.head.flow(c.context(), inputs); }, {"actions", "6", "7"});
}

}  // namespace
}  // namespace longship::models
