#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Two outputs from two inputs and a parameter.
struct Unit {
  at::Tensor weight = at::randn({4, 4}).set_requires_grad(true);
  int calls = 0;
  Tensors operator()(const Tensors& in) {
    ++calls;
    const at::Tensor h = in[0].matmul(weight).tanh() + in[1];
    return {h, h.mul(in[1]).sin()};
  }
};

Tensors gradients(bool enabled, Unit& unit, const at::Tensor& x0, const at::Tensor& y0) {
  at::Tensor x = x0.clone().set_requires_grad(true), y = y0.clone().set_requires_grad(true);
  unit.weight.mutable_grad() = at::Tensor();
  const Tensors out = recompute(enabled, [&](const Tensors& in) { return unit(in); }, {x, y});
  out[0].mul(out[1]).sum().backward();
  return {out[0].detach(), out[1].detach(), x.grad(), y.grad(), unit.weight.grad().clone()};
}

TEST(Recompute, SameBitsAsKeepingActivations) {
  Unit unit;
  const at::Tensor x = at::randn({3, 4}), y = at::randn({3, 4});
  const Tensors kept = gradients(false, unit, x, y);
  EXPECT_EQ(unit.calls, 1);
  const Tensors again = gradients(true, unit, x, y);
  EXPECT_EQ(unit.calls, 3);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], again[i])) << i;
}

TEST(Recompute, WorksWhenOnlyParametersNeedGradients) {
  Unit unit;
  const Tensors out = recompute(true, [&](const Tensors& in) { return unit(in); },
                                {at::randn({3, 4}), at::randn({3, 4})});
  out[0].sum().backward();
  EXPECT_TRUE(unit.weight.grad().defined());
}

TEST(Recompute, AnUnusedOutputNeedsNoGradient) {
  Unit unit;
  const at::Tensor x = at::randn({3, 4}).set_requires_grad(true);
  const Tensors out =
      recompute(true, [&](const Tensors& in) { return unit(in); }, {x, at::randn({3, 4})});
  out[1].sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Recompute, NestedUnits) {
  Unit inner;
  const at::Tensor x = at::randn({3, 4}).set_requires_grad(true);
  const auto outer = [&](const Tensors& in) {
    return recompute(
        true, [&](const Tensors& deeper) { return inner(deeper); }, in);
  };
  const Tensors out = recompute(true, outer, {x, at::randn({3, 4})});
  out[0].sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_EQ(inner.calls, 3);  // forward, again for the outer unit, again for the inner one
}

TEST(Recompute, WithoutGradientsItIsAPlainCall) {
  Unit unit;
  const at::NoGradGuard no_grad;
  recompute(true, [&](const Tensors& in) { return unit(in); },
            {at::randn({3, 4}), at::randn({3, 4})});
  EXPECT_EQ(unit.calls, 1);
}

}  // namespace
}  // namespace longship::nn
