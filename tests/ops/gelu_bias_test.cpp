#include "ops/gelu_bias.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

at::Tensor composite(const at::Tensor& x, const at::Tensor& bias) {
  return at::gelu(x + bias, "tanh");
}

class GeluBiasShapes : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(GeluBiasShapes, ForwardAndGradientsMatchDefinition) {
  const auto [rows, width] = GetParam();
  std::vector<at::Tensor> ours, theirs;
  for (const auto& sizes : {std::vector<int64_t>{rows, width}, {width}}) {
    ours.push_back(random(sizes).set_requires_grad(true));
    theirs.push_back(leaf_on(ours.back(), at::kCPU));
  }
  const at::Tensor weight = random({rows, width});
  const at::Tensor y = gelu_bias(ours[0], ours[1]);
  const at::Tensor expected = composite(theirs[0], theirs[1]);
  EXPECT_TRUE(close(y, expected));
  (y * weight).sum().backward();
  (expected * weight).sum().backward();
  EXPECT_TRUE(close(ours[0].grad(), theirs[0].grad()));
  EXPECT_TRUE(close(ours[1].grad(), theirs[1].grad()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GeluBiasShapes,
                         ::testing::Values(std::pair{1, 1}, std::pair{7, 5}, std::pair{64, 33},
                                           std::pair{130, 16}, std::pair{3, 200}));

TEST(GeluBias, NumericalGradientInFloat64) {
  const at::Tensor x = random({5, 4}).set_requires_grad(true);
  const at::Tensor bias = random({4}).set_requires_grad(true);
  const at::Tensor weight = random({5, 4});
  expect_numeric_gradients([&] { return (gelu_bias(x, bias) * weight).sum(); }, {x, bias});
}

TEST(GeluBias, DtypesOfXAndBiasAreIndependent) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType bias_type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random({12, 24}, type).set_requires_grad(true);
      const at::Tensor bias = random({24}, bias_type).set_requires_grad(true);
      const at::Tensor y = gelu_bias(x, bias);
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_TRUE(close(y, composite(x.to(at::kFloat), bias.to(at::kFloat))));
      y.sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), type);
      EXPECT_EQ(bias.grad().scalar_type(), bias_type);
    }
  }
}

TEST(GeluBias, SameBitsForAnyNumberOfThreads) {
  const at::Tensor base = random({400, 300}, at::kFloat);
  std::vector<at::Tensor> gradients;
  const int saved = at::get_num_threads();
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    const at::Tensor x = leaf_on(base, at::kCPU);
    const at::Tensor bias = at::zeros({300}).set_requires_grad(true);
    gelu_bias(x, bias).sum().backward();
    gradients.push_back(bias.grad());
  }
  at::set_num_threads(saved);
  EXPECT_TRUE(same_bits(gradients[0], gradients[1]));
}

TEST(GeluBias, ZeroRowsGiveAZeroBiasGradient) {
  const at::Tensor bias = random({8}, at::kFloat).set_requires_grad(true);
  const at::Tensor y = gelu_bias(at::empty({0, 8}), bias);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 8}));
  y.sum().backward();
  EXPECT_TRUE(same_bits(bias.grad(), at::zeros({8})));
}

TEST(GeluBias, MetaShapesEqualRealShapes) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({3, 4, 16}, meta).set_requires_grad(true);
  const at::Tensor bias = at::empty({16}, meta).set_requires_grad(true);
  const at::Tensor y = gelu_bias(x, bias);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(bias.grad().sizes(), bias.sizes());
}

TEST(GeluBias, WrongBiasNamesTheShapes) {
  try {
    gelu_bias(at::zeros({2, 8}), at::zeros({7}));
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("gelu_bias: bias must be [8], got [7]"));
  }
}

struct GpuCase {
  int64_t rows, width;
  at::ScalarType type, bias_type;
  bool shifted;
};

/// y, dx, dbias.
std::vector<at::Tensor> run(const GpuCase& c, const at::Tensor& x0, const at::Tensor& bias0,
                            const at::Tensor& dy0, at::Device device) {
  at::Tensor x = leaf_on(x0, device), dy = dy0.to(device);
  if (c.shifted) {
    x = misaligned(x.detach()).set_requires_grad(true);
    dy = misaligned(dy);
  }
  const at::Tensor bias = leaf_on(bias0, device);
  const at::Tensor y = gelu_bias(x, bias);
  y.backward(dy);
  return {y.detach(), x.grad(), bias.grad()};
}

TEST(GeluBiasGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const GpuCase& c : {GpuCase{7, 5, at::kFloat, at::kFloat, false},
                           {1, 1, at::kBFloat16, at::kFloat, false},
                           {1000, 4304, at::kBFloat16, at::kBFloat16, false},
                           {333, 4304, at::kFloat, at::kBFloat16, false},
                           {2000, 33, at::kBFloat16, at::kFloat, false},
                           {77, 256, at::kBFloat16, at::kBFloat16, true},
                           {4100, 8, at::kFloat, at::kFloat, false},
                           {5, 264, at::kFloat, at::kFloat, true},
                           {0, 24, at::kBFloat16, at::kFloat, false}}) {
    const at::Tensor x = random({c.rows, c.width}, c.type);
    const at::Tensor bias = random({c.width}, c.bias_type);
    const at::Tensor dy = random({c.rows, c.width}, c.type);
    auto expected = run(c, x, bias, dy, at::kCPU);
    // Values in fp64: the oracle's 1 + tanh(u) loses its digits in fp32 far below zero.
    const auto exact =
        run(c, x.to(at::kDouble), bias.to(at::kDouble), dy.to(at::kDouble), at::kCPU);
    for (size_t i = 0; i < 2; ++i) expected[i] = exact[i].to(c.type);
    const auto got = run(c, x, bias, dy, at::kCUDA);
    const auto again = run(c, x, bias, dy, at::kCUDA);
    for (size_t i = 0; i < 3; ++i) {
      // A sum over the rows carries the rounding of its partial sums.
      const double atol =
          i == 2 && c.bias_type == at::kFloat ? 1e-5 * std::sqrt(c.rows + 1.0) : 0.0;
      EXPECT_TRUE(close(got[i], expected[i], atol))
          << "result " << i << " of " << c.rows << "x" << c.width;
      EXPECT_TRUE(same_bits(got[i], again[i])) << "result " << i;
    }
  }
}

}  // namespace
}  // namespace longship::ops
