#include "nn/functions.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nn/rope.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

at::Tensor wave(std::vector<int64_t> shape, double phase) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::arange(n, at::kDouble) * 1.7 + phase).sin().view(shape);
}

TEST(Rope, RotatesHalfSplitPairs) {
  const RopeTable table = rope_table(at::tensor({3}, at::kLong), 4, 10000.0, at::kDouble);
  const at::Tensor x = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({1, 1, 4});
  const at::Tensor y = apply_rope(x, table).flatten();
  const double a0 = 3.0, a1 = 3.0 * std::pow(10000.0, -0.5);
  EXPECT_NEAR(y[0].item<double>(), 1 * std::cos(a0) - 3 * std::sin(a0), 1e-9);
  EXPECT_NEAR(y[2].item<double>(), 3 * std::cos(a0) + 1 * std::sin(a0), 1e-9);
  EXPECT_NEAR(y[1].item<double>(), 2 * std::cos(a1) - 4 * std::sin(a1), 1e-9);
  EXPECT_NEAR(y[3].item<double>(), 4 * std::cos(a1) + 2 * std::sin(a1), 1e-9);
}

TEST(Rope, ProductsDependOnDistanceOnly) {
  const at::Tensor q = wave({1, 1, 6}, 0.3), k = wave({1, 1, 6}, 1.1);
  const auto at_position = [](const at::Tensor& x, int64_t p) {
    return apply_rope(x, rope_table(at::tensor({p}, at::kLong), 6, 10000.0, at::kDouble));
  };
  const double near_start = at_position(q, 5).mul(at_position(k, 2)).sum().item<double>();
  const double far = at_position(q, 105).mul(at_position(k, 102)).sum().item<double>();
  EXPECT_NEAR(near_start, far, 1e-9);
}

TEST(Rope, BackwardIsTheOppositeRotation) {
  const RopeTable table = rope_table(at::arange(4, at::kLong), 6, 100.0, at::kDouble);
  const at::Tensor x = wave({4, 2, 6}, 0.4).requires_grad_(true), probe = wave({4, 2, 6}, 2.0);
  apply_rope(x, table).mul(probe).sum().backward();
  const RopeTable back{table.cos, table.sin.neg()};
  EXPECT_TRUE(at::allclose(x.grad(), apply_rope(probe, back)));
}

TEST(Rope, Fp32TableOnBf16InputRoundsOnce) {
  const RopeTable table = rope_table(at::arange(3, at::kLong), 4, 10000.0, at::kFloat);
  const at::Tensor x = wave({3, 1, 4}, 0.4).to(at::kBFloat16);
  const at::Tensor y = apply_rope(x, table);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, apply_rope(x.to(at::kFloat), table).to(at::kBFloat16)));
}

struct Places {
  at::Tensor pad = at::tensor({0, 1, 2, 3, 0, 0}, at::kLong);  // lengths 3 and 1, padded to 3
  at::Tensor unpad = at::tensor({0, 1, 2, 3}, at::kLong);
  at::Tensor unused = at::tensor({4, 5}, at::kLong);
};

TEST(PadRows, RoundTripsAndDropsUnusedGradients) {
  const Places p;
  const at::Tensor x = wave({4, 3}, 0.0).requires_grad_(true);
  const at::Tensor padded = pad_rows(x, p.pad, p.unpad);
  EXPECT_EQ(padded.size(0), 6);
  EXPECT_TRUE(at::equal(unpad_rows(padded, p.pad, p.unpad, p.unused), x));
  const at::Tensor weights = at::arange(6, at::kDouble).view({6, 1});
  padded.mul(weights).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::arange(4, at::kDouble).view({4, 1}).expand({4, 3})));
}

TEST(UnpadRows, GradientOfUnusedPlacesIsZero) {
  const Places p;
  const at::Tensor y = wave({6, 2}, 0.0).requires_grad_(true);
  unpad_rows(y, p.pad, p.unpad, p.unused).sum().backward();
  EXPECT_EQ(y.grad().sum().item<double>(), 8.0);
  EXPECT_EQ(y.grad().narrow(0, 4, 2).abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace longship::nn
