#include "nn/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

using ::testing::ElementsAre;
using Tensors = std::vector<at::Tensor>;

struct Recorder : UnitHooks {
  std::vector<std::string> events;
  void before_forward(std::string_view unit) override {
    events.push_back(fmt::format("forward {}", unit));
  }
  void after_forward(std::string_view unit, bool needs_backward, bool inputs_need_grad) override {
    events.push_back(fmt::format("left {} {}{}", unit, needs_backward ? "b" : "-",
                                 inputs_need_grad ? "i" : "-"));
  }
  void before_backward(std::string_view unit) override {
    events.push_back(fmt::format("backward {}", unit));
  }
  void after_backward(std::string_view unit) override {
    events.push_back(fmt::format("done {}", unit));
  }
};

/// Two units of two outputs each and what came of them.
struct Model {
  at::Tensor a = at::randn({4, 4}).set_requires_grad(true);
  at::Tensor b = at::randn({4, 4}).set_requires_grad(true);
  bool recomputed = false;
  Recorder recorder;
  bool watched = false;

  Tensors unit(const std::string& name, const at::Tensor& weight, const Tensors& in) {
    const auto f = [this, name, weight](const Tensors& x) {
      recorder.events.push_back("run " + name);
      const at::Tensor h = x[0].matmul(weight).tanh() + x[1];
      return Tensors{h, h.mul(x[1]).sin()};
    };
    return run_unit(watched ? &recorder : nullptr, name, recomputed, f, in);
  }
  Tensors gradients(const at::Tensor& x, const at::Tensor& y) {
    a.mutable_grad() = b.mutable_grad() = at::Tensor();
    const at::Tensor loss = run_root(watched ? &recorder : nullptr, [&] {
      const Tensors h = unit("a", a, {x, y});
      const Tensors out = unit("b", b, h);
      return out[0].sum() + out[1].sum();
    });
    if (loss.requires_grad()) loss.backward();
    return {loss.detach(), a.grad(), b.grad()};
  }
};

TEST(Unit, ReportsInOrderAndChangesNoBit) {
  Model model;
  const at::Tensor x = at::randn({3, 4}), y = at::randn({3, 4});
  const Tensors plain = model.gradients(x, y);
  model.watched = true;
  model.recorder.events.clear();
  const Tensors kept = model.gradients(x, y);
  EXPECT_THAT(model.recorder.events,
              ElementsAre("forward ", "forward a", "run a", "left a b-", "forward b", "run b",
                          "left b bi", "left  --", "backward b", "done b", "backward a"));
  model.recomputed = true;
  model.recorder.events.clear();
  const Tensors again = model.gradients(x, y);
  // The forward pass that is run again reports nothing of its own.
  EXPECT_THAT(
      model.recorder.events,
      ElementsAre("forward ", "forward a", "run a", "left a b-", "forward b", "run b", "left b bi",
                  "left  --", "backward b", "run b", "done b", "backward a", "run a"));
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], kept[i])) << i;
    EXPECT_TRUE(at::equal(plain[i], again[i])) << i;
  }
}

TEST(Unit, AFrozenUnitThatPassesNoGradient) {
  Model model;
  model.a.set_requires_grad(false);
  model.watched = true;
  model.gradients(at::randn({3, 4}), at::randn({3, 4}));
  EXPECT_THAT(model.recorder.events,
              ElementsAre("forward ", "forward a", "run a", "left a --", "forward b", "run b",
                          "left b b-", "left  --", "backward b"));
}

TEST(Unit, WithoutGradientsOnlyForward) {
  const at::NoGradGuard no_grad;
  Model model;
  model.watched = true;
  model.recomputed = true;
  model.gradients(at::randn({3, 4}), at::randn({3, 4}));
  EXPECT_THAT(model.recorder.events, ElementsAre("forward ", "forward a", "run a", "left a --",
                                                 "forward b", "run b", "left b --", "left  --"));
}

// Only what needs a gradient is watched: other inputs stay as they are.
TEST(Unit, AnInputWithoutGradientStaysOne) {
  Recorder recorder;
  const at::Tensor w = at::randn({2, 2}).set_requires_grad(true);
  const at::Tensor x = at::randn({2, 2}).set_requires_grad(true), mask = at::randn({2, 2});
  const Tensors out = run_unit(&recorder, "u", false,
                               [&](const Tensors& in) {
                                 EXPECT_TRUE(in[1].is_same(mask));
                                 EXPECT_FALSE(in[1].requires_grad());
                                 return Tensors{in[0].matmul(w) * in[1], in[1]};
                               },
                               {x, mask});
  EXPECT_TRUE(out[1].is_same(mask));
  out[0].sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_THAT(recorder.events, ElementsAre("forward u", "left u bi", "backward u", "done u"));
}

}  // namespace
}  // namespace longship::nn
