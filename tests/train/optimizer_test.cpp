// AdamW against its closed form, the library's fused kernel, and its own properties.
#include "train/optimizer.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/strings.h"
#include "train/parameters.h"

namespace longship::train {
namespace {

using models::ParamInfo;
using models::ParamRole;
using ::testing::HasSubstr;

float at0(const at::Tensor& t) {
  return t.flatten()[0].item<float>();
}

TEST(AdamW, FirstStepIsClosedForm) {
  ParamInfo p = parameter("w", at::full({1}, 2.0));
  AdamWConfig c;
  c.weight_decay = 0.1;
  c.clip_norm.reset();
  AdamW optimizer({p}, c);
  set_grad(p, at::full({1}, 3.0));
  EXPECT_DOUBLE_EQ(optimizer.step(0.01), 3.0);
  // After one step the bias-corrected moments are g and g^2.
  EXPECT_FLOAT_EQ(at0(p.tensor),
                  static_cast<float>(2.0 * (1 - 0.01 * 0.1) - 0.01 * 3.0 / (3.0 + 1e-8)));
  EXPECT_EQ(optimizer.num_updates(), 1);
}

TEST(AdamW, SeveralStepsAgreeWithDoublePrecision) {
  ParamInfo p = parameter("w", at::full({1}, 0.7));
  AdamWConfig c;
  c.weight_decay = 0.02;
  AdamW optimizer({p}, c);
  double w = static_cast<double>(at0(p.tensor)), m = 0, v = 0;
  for (int t = 1; t <= 30; ++t) {
    const double g = std::sin(t) * 4;
    const double lr = 0.01 / t;
    set_grad(p, at::full({1}, g));
    const double norm = optimizer.step(lr);
    EXPECT_NEAR(norm, std::abs(g), 1e-5);
    const double clipped = g * std::min(1.0, 1.0 / (std::abs(g) + 1e-6));
    w *= 1 - lr * 0.02;
    m += (1 - 0.9) * (clipped - m);
    v = 0.95 * v + 0.05 * clipped * clipped;
    w -= lr / (1 - std::pow(0.9, t)) * m / (std::sqrt(v) / std::sqrt(1 - std::pow(0.95, t)) + 1e-8);
  }
  EXPECT_NEAR(at0(p.tensor), w, 2e-6);
}

TEST(AdamW, AgreesWithTheLibrarysFusedKernel) {
  ParamInfo a = parameter("a", normal({300, 70}, 1));
  ParamInfo b = parameter("b", normal({13}, 2));
  AdamWConfig c;
  c.clip_norm.reset();
  c.weight_decay = 0.05;
  AdamW optimizer({a, b}, c);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> params = {a.tensor.detach().clone(), b.tensor.detach().clone()};
  std::vector<at::Tensor> m = {at::zeros({300, 70}), at::zeros({13})};
  std::vector<at::Tensor> v = {at::zeros({300, 70}), at::zeros({13})};
  for (int t = 1; t <= 5; ++t) {
    const at::Tensor ga = normal({300, 70}, 10 + static_cast<uint64_t>(t)),
                     gb = normal({13}, 50 + static_cast<uint64_t>(t));
    set_grad(a, ga);
    set_grad(b, gb);
    optimizer.step(1e-2);
    std::vector<at::Tensor> grads = {ga.clone(), gb.clone()};
    std::vector<at::Tensor> steps = {at::full({}, static_cast<double>(t)),
                                     at::full({}, static_cast<double>(t))};
    at::_fused_adamw_(params, grads, m, v, {}, steps, 1e-2, 0.9, 0.95, 0.05, 1e-8, false, false);
  }
  EXPECT_LT((a.tensor - params[0]).abs().max().item<float>(), 2e-6F);
  EXPECT_LT((b.tensor - params[1]).abs().max().item<float>(), 2e-6F);
}

// The library's path, run on the CPU: groups, clipping, decay-only, average and masters.
TEST(AdamW, BothPathsAgree) {
  std::vector<std::vector<at::Tensor>> results;
  for (const bool fused : {true, false}) {
    ParamInfo a = parameter("a.weight", normal({200, 90}, 1));
    ParamInfo b = parameter("b.bias", normal({13}, 2).to(at::kBFloat16));
    ParamInfo dead = parameter("dead", normal({5}, 3), ParamRole::kDecayOnly);
    AdamWConfig c;
    c.weight_decay = 0.1;
    c.ema = 0.9;
    c.groups = {{"*.bias", 0.5, 0.0}};
    c.fused = fused;
    AdamW optimizer({a, b, dead}, c);
    for (uint64_t t = 1; t <= 5; ++t) {
      set_grad(a, normal({200, 90}, 10 + t));
      set_grad(b, normal({13}, 50 + t));
      EXPECT_NEAR(optimizer.step(1e-2), 134, 3);
    }
    std::vector<at::Tensor> state;
    for (const auto& [name, tensor] : optimizer.state()) state.push_back(tensor);
    results.push_back(state);
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_LT((results[0][i] - results[1][i]).abs().max().item<float>(), 3e-6F) << i;
  }
}

TEST(AdamW, NormIsGlobalAndClippingScalesByIt) {
  ParamInfo a = parameter("a", at::zeros({2})), b = parameter("b", at::zeros({1}));
  AdamWConfig c;
  c.weight_decay = 0;
  c.clip_norm = 2.5;
  AdamW optimizer({a, b}, c);
  set_grad(a, at::full({2}, 2.0));
  set_grad(b, at::full({1}, 1.0));
  EXPECT_DOUBLE_EQ(optimizer.step(1e-3), 3.0);
  const double clip = 2.5 / (3.0 + 1e-6);
  EXPECT_FLOAT_EQ(at0(optimizer.entries()[0].exp_avg), static_cast<float>(0.1 * 2.0 * clip));
  EXPECT_FLOAT_EQ(at0(optimizer.entries()[1].exp_avg), static_cast<float>(0.1 * 1.0 * clip));
}

TEST(AdamW, SmallGradientsAreNotScaledUp) {
  ParamInfo a = parameter("a", at::zeros({1}));
  AdamW optimizer({a}, AdamWConfig{});
  set_grad(a, at::full({1}, 0.5));
  EXPECT_DOUBLE_EQ(optimizer.step(1e-3), 0.5);
  EXPECT_FLOAT_EQ(at0(optimizer.entries()[0].exp_avg), 0.05F);
}

TEST(AdamW, NormOfManyChunksIsExactAndIndependentOfThreads) {
  ParamInfo a = parameter("a", at::zeros({70001}));
  AdamW optimizer({a}, AdamWConfig{});
  const at::Tensor g = normal({70001}, 3);
  set_grad(a, g);
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = optimizer.grad_norm();
  at::set_num_threads(2);
  const double two = optimizer.grad_norm();
  at::set_num_threads(before);
  EXPECT_EQ(one, two);
  EXPECT_NEAR(one, std::sqrt(g.to(at::kDouble).square().sum().item<double>()), 1e-9);
}

TEST(AdamW, DecayOnlyParametersOnlyDecay) {
  ParamInfo a = parameter("a", at::zeros({1})),
            dead = parameter("dead", at::full({2}, 4.0), ParamRole::kDecayOnly);
  AdamWConfig c;
  c.weight_decay = 0.5;
  AdamW optimizer({a, dead}, c);
  set_grad(a, at::full({1}, 1.0));
  optimizer.step(0.1);
  EXPECT_FLOAT_EQ(at0(dead.tensor), 4.0F * 0.95F);
  EXPECT_FALSE(optimizer.entries()[1].exp_avg.defined());
}

TEST(AdamW, FrozenParametersAreNeverTouched) {
  ParamInfo a = parameter("a", at::zeros({1})),
            frozen = parameter("f", at::full({2}, 4.0), ParamRole::kFrozen);
  AdamWConfig c;
  c.weight_decay = 0.5;
  c.ema = 0.9;
  AdamW optimizer({a, frozen}, c);
  set_grad(a, at::full({1}, 1.0));
  optimizer.step(0.1);
  EXPECT_EQ(at0(frozen.tensor), 4.0F);
  EXPECT_EQ(optimizer.entries().size(), 1U);
}

TEST(AdamW, MovingAverageFollowsItsRule) {
  ParamInfo a = parameter("a", at::full({1}, 1.0));
  AdamWConfig c;
  c.ema = 0.75;
  c.weight_decay = 0;
  AdamW optimizer({a}, c);
  double ema = 1.0;
  for (int i = 0; i < 4; ++i) {
    set_grad(a, at::full({1}, 1.0));
    optimizer.step(0.1);
    ema = 0.75 * ema + 0.25 * static_cast<double>(at0(a.tensor));
  }
  EXPECT_NEAR(at0(optimizer.entries()[0].ema), ema, 1e-6);
  EXPECT_NEAR(at0(optimizer.export_values()[0].tensor), ema, 1e-6);
}

TEST(AdamW, MastersKeepUpdatesThatBf16CannotShow) {
  ParamInfo a = parameter("a", at::full({1}, 1.0).to(at::kBFloat16));
  AdamWConfig c;
  c.weight_decay = 0;
  AdamW optimizer({a}, c);
  ASSERT_TRUE(optimizer.has_masters());
  for (int i = 0; i < 1000; ++i) {
    set_grad(a, at::full({1}, 1.0));
    optimizer.step(1e-6);
  }
  EXPECT_NEAR(at0(optimizer.entries()[0].master), 1.0 - 1000 * 1e-6, 2e-5);
  EXPECT_EQ(at0(a.tensor.to(at::kFloat)),
            at0(optimizer.entries()[0].master.to(at::kBFloat16).to(at::kFloat)));
}

TEST(AdamW, MastersTakeFullPrecisionValues) {
  ParamInfo a = parameter("a", at::full({2}, 0.3).to(at::kBFloat16));
  AdamWConfig c;
  c.ema = 0.9;
  AdamW optimizer({a}, c);
  optimizer.set_master("a", at::full({2}, 0.3));
  EXPECT_EQ(at0(optimizer.entries()[0].master), 0.3F);
  EXPECT_EQ(at0(optimizer.entries()[0].ema), 0.3F);
}

TEST(AdamW, RoundingToBf16EqualsTheLibrarys) {
  const at::Tensor x = normal({5000}, 9);
  ParamInfo a = parameter("a", at::zeros({5000}).to(at::kBFloat16));
  AdamWConfig c;
  c.weight_decay = 0;
  AdamW optimizer({a}, c);
  optimizer.set_master("a", x);
  set_grad(a, at::zeros({5000}));
  optimizer.step(1e-3);  // zero gradient: the master is written back unchanged
  EXPECT_TRUE(a.tensor.detach().equal(x.to(at::kBFloat16)));
}

TEST(AdamW, NonFiniteGradientsChangeNothing) {
  ParamInfo a = parameter("a", normal({40000}, 4));
  AdamWConfig c;
  c.ema = 0.9;
  AdamW optimizer({a}, c);
  set_grad(a, normal({40000}, 5));
  optimizer.step(1e-3);
  const at::Tensor weights = a.tensor.detach().clone(),
                   mean = optimizer.entries()[0].exp_avg.clone(),
                   ema = optimizer.entries()[0].ema.clone();
  at::Tensor bad = normal({40000}, 6);
  bad[39999] = std::numeric_limits<float>::infinity();
  set_grad(a, bad);
  EXPECT_FALSE(std::isfinite(optimizer.step(1e-3)));
  bad[39999] = std::nan("");
  set_grad(a, bad);
  EXPECT_FALSE(std::isfinite(optimizer.step(1e-3)));
  EXPECT_TRUE(a.tensor.detach().equal(weights));
  EXPECT_TRUE(optimizer.entries()[0].exp_avg.equal(mean));
  EXPECT_TRUE(optimizer.entries()[0].ema.equal(ema));
  EXPECT_EQ(optimizer.num_updates(), 1);
}

TEST(AdamW, GroupsSetRateAndDecayAndTheFirstMatchWins) {
  ParamInfo a = parameter("net.a.weight", at::full({1}, 1.0)),
            b = parameter("net.b.bias", at::full({1}, 1.0));
  AdamWConfig c;
  c.weight_decay = 0.1;
  c.groups = {{"*.bias", 1.0, 0.0}, {"net.*", 0.5, std::nullopt}};
  AdamW optimizer({a, b}, c);
  EXPECT_EQ(optimizer.entries()[0].lr_scale, 0.5);
  EXPECT_FALSE(optimizer.entries()[0].weight_decay.has_value());
  EXPECT_EQ(*optimizer.entries()[1].weight_decay, 0.0);
  set_grad(a, at::zeros({1}));
  set_grad(b, at::zeros({1}));
  optimizer.step(0.1);
  EXPECT_FLOAT_EQ(at0(a.tensor), 1.0F - 0.05F * 0.1F);
  EXPECT_FLOAT_EQ(at0(b.tensor), 1.0F);
}

std::string group_error(const std::vector<ParamGroupConfig>& groups) {
  AdamWConfig c;
  c.groups = groups;
  try {
    AdamW({parameter("net.a.weight", at::zeros({1})), parameter("net.b.bias", at::zeros({1}))}, c);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(AdamW, UnmatchedOrHiddenGroupsAreErrors) {
  EXPECT_THAT(group_error({{"vision.*", 1.0, {}}}),
              HasSubstr("optim.groups.0.pattern: 'vision.*' matches none of the 2"));
  EXPECT_THAT(group_error({{"net.*", 1.0, {}}, {"*.bias", 2.0, {}}}),
              HasSubstr("taken by earlier groups"));
}

TEST(AdamW, MissingGradientNamesTheParameter) {
  ParamInfo a = parameter("net.used", at::zeros({1})), b = parameter("net.unused", at::zeros({1}));
  AdamW optimizer({a, b}, AdamWConfig{});
  set_grad(a, at::zeros({1}));
  try {
    optimizer.grad_norm();
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("net.unused"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("net.used,")));
  }
}

TEST(AdamW, EverythingFrozenIsAnError) {
  EXPECT_THROW(AdamW({parameter("a", at::zeros({1}), ParamRole::kFrozen)}, AdamWConfig{}),
               ConfigError);
}

TEST(AdamW, StateRestoresBitwise) {
  AdamWConfig c;
  c.ema = 0.9;
  ParamInfo a = parameter("a", normal({500}, 1)), a2 = parameter("a", at::zeros({500}));
  AdamW first({a}, c), second({a2}, c);
  for (uint64_t i = 0; i < 3; ++i) {
    set_grad(a, normal({500}, 20 + i));
    first.step(1e-2);
  }
  second.load_state(first.state(), first.num_updates());
  set_grad(a, normal({500}, 30));
  set_grad(a2, normal({500}, 30));
  first.step(1e-2);
  second.step(1e-2);
  EXPECT_TRUE(a.tensor.detach().equal(a2.tensor.detach()));
  EXPECT_TRUE(first.entries()[0].ema.equal(second.entries()[0].ema));
}

TEST(AdamW, StateThatDoesNotFitListsEveryEntry) {
  AdamW optimizer({parameter("a", at::zeros({3}))}, AdamWConfig{});
  try {
    optimizer.load_state({{"weights.a", at::zeros({4})}, {"exp_avg.b", at::zeros({3})}}, 1);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wrong shape or type of weights.a"));
    EXPECT_THAT(error.what(), HasSubstr("missing exp_avg.a"));
    EXPECT_THAT(error.what(), HasSubstr("unexpected exp_avg.b"));
  }
}

TEST(GlobMatch, StarAndQuestionMark) {
  EXPECT_TRUE(matches_glob("*", "anything.at.all"));
  EXPECT_TRUE(matches_glob("a.*.weight", "a.b.c.weight"));
  EXPECT_TRUE(matches_glob("layer?.w", "layer3.w"));
  EXPECT_FALSE(matches_glob("layer?.w", "layer13.w"));
  EXPECT_FALSE(matches_glob("a.*", "b.a.c"));
  EXPECT_TRUE(matches_glob("*bias*", "x.bias"));
  EXPECT_FALSE(matches_glob("", "x"));
}

}  // namespace
}  // namespace longship::train
