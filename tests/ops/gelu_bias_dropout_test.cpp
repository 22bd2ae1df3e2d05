#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "op_support.h"
#include "ops/dropout.h"
#include "ops/gelu_bias.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

constexpr double kP = 0.2;

at::Tensor make_keys(int64_t count) {
  at::Tensor keys = at::empty({count}, at::TensorOptions(at::kLong));
  for (int64_t b = 0; b < count; ++b) {
    keys[b].fill_(
        static_cast<int64_t>(random_bits(make_key(5, RngStream::kTest), static_cast<uint64_t>(b))));
  }
  return keys;
}

struct Case {
  std::vector<int64_t> sizes;
  at::ScalarType type, bias_type;
  bool shifted = false;
};

using Call = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&);

at::Tensor fused(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& keys) {
  return gelu_bias_dropout(x, bias, keys, 6, kP);
}

at::Tensor composite(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& keys) {
  return dropout(gelu_bias(x, bias), keys, 6, kP);
}

/// y, dx, dbias on the CPU.
std::vector<at::Tensor> run(Call call, const Case& c, const at::Tensor& x0, const at::Tensor& bias0,
                            const at::Tensor& dy0, at::Device device) {
  at::Tensor x = leaf_on(x0, device), dy = dy0.to(device);
  if (c.shifted) {
    x = misaligned(x.detach()).set_requires_grad(true);
    dy = misaligned(dy);
  }
  const at::Tensor bias = leaf_on(bias0, device);
  const at::Tensor y = call(x, bias, make_keys(c.sizes[0]).to(device));
  y.backward(dy);
  return {y.detach().cpu(), x.grad().cpu(), bias.grad().cpu()};
}

TEST(GeluBiasDropout, IsTheTwoOperatorsBitForBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Case c{{3, 5, 24}, type, type};
    const at::Tensor x = random(c.sizes, type), bias = random({24}, type);
    const at::Tensor dy = random(c.sizes, type);
    const auto ours = run(fused, c, x, bias, dy, at::kCPU);
    const auto theirs = run(composite, c, x, bias, dy, at::kCPU);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(ours[i], theirs[i])) << i;
  }
}

TEST(GeluBiasDropout, NumericalGradientInFloat64) {
  const at::Tensor x = random({2, 3, 4}).set_requires_grad(true);
  const at::Tensor bias = random({4}).set_requires_grad(true), weight = random({2, 3, 4});
  const at::Tensor keys = make_keys(2);
  expect_numeric_gradients([&] { return (fused(x, bias, keys) * weight).sum(); }, {x, bias});
}

TEST(GeluBiasDropout, MetaShapesEqualRealShapes) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({3, 4, 16}, meta).set_requires_grad(true);
  const at::Tensor bias = at::empty({16}, meta).set_requires_grad(true);
  const at::Tensor y = fused(x, bias, make_keys(3).to(at::kMeta));
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(bias.grad().sizes(), bias.sizes());
}

TEST(GeluBiasDropout, WrongArgumentsAreNamed) {
  const auto message = [](auto&& call) {
    try {
      call();
    } catch (const ShapeError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  const at::Tensor x = at::zeros({2, 3, 8}), bias = at::zeros({8});
  EXPECT_THAT(message([&] { fused(x, at::zeros({7}), make_keys(2)); }),
              ::testing::HasSubstr("bias must be [8], got [7]"));
  EXPECT_THAT(message([&] { fused(x, bias, make_keys(3)); }),
              ::testing::HasSubstr("gelu_bias_dropout: keys must be [2], got [3]"));
  EXPECT_THAT(message([&] { fused(at::zeros({8}), bias, make_keys(8)); }),
              ::testing::HasSubstr("x must be [B, ..., H]"));
  EXPECT_THAT(message([&] { gelu_bias_dropout(x, bias, make_keys(2), 0, 1.0); }),
              ::testing::HasSubstr("p = 1"));
}

TEST(GeluBiasDropoutGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const Case& c : {Case{{7, 5}, at::kFloat, at::kFloat},
                        {{1, 1, 1}, at::kBFloat16, at::kFloat},
                        {{13, 51, 6144}, at::kBFloat16, at::kBFloat16},
                        {{3, 41, 512}, at::kFloat, at::kBFloat16},
                        {{9, 100, 33}, at::kBFloat16, at::kFloat},
                        {{4, 19, 256}, at::kBFloat16, at::kBFloat16, true},
                        {{410, 10, 8}, at::kFloat, at::kFloat},
                        {{0, 3, 24}, at::kBFloat16, at::kFloat},
                        {{3, 0, 24}, at::kBFloat16, at::kFloat}}) {
    const at::Tensor x = random(c.sizes, c.type), bias = random({c.sizes.back()}, c.bias_type);
    const at::Tensor dy = random(c.sizes, c.type);
    auto expected = run(fused, c, x, bias, dy, at::kCPU);
    // Values in fp64: the oracle's 1 + tanh(u) loses its digits in fp32 far below zero.
    const auto exact =
        run(fused, c, x.to(at::kDouble), bias.to(at::kDouble), dy.to(at::kDouble), at::kCPU);
    for (size_t i = 0; i < 2; ++i) expected[i] = exact[i].to(c.type);
    const auto got = run(fused, c, x, bias, dy, at::kCUDA);
    const auto again = run(fused, c, x, bias, dy, at::kCUDA);
    // The same bits as the two kernels, up to the order of the sum over rows.
    const auto apart = run(composite, c, x, bias, dy, at::kCUDA);
    const double rows = static_cast<double>(x.numel() / c.sizes.back());
    for (size_t i = 0; i < 3; ++i) {
      const double atol = i == 2 && c.bias_type == at::kFloat ? 1e-5 * std::sqrt(rows + 1.0) : 0.0;
      // Two roundings in bf16, here of values up to 4 or so.
      const double wider = c.type == at::kBFloat16 ? 2e-2 : 0.0;
      EXPECT_TRUE(close(got[i], expected[i], std::max(atol, wider), i < 2 ? wider : 0.0))
          << "result " << i << " of " << c.sizes;
      EXPECT_TRUE(same_bits(got[i], again[i])) << "result " << i;
      EXPECT_TRUE(same_bits(got[i], apart[i])) << "result " << i << " of " << c.sizes;
    }
  }
}

}  // namespace
}  // namespace longship::ops
