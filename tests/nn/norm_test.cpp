#include "nn/norm.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

TEST(RmsNorm, WeightIsTheOffsetFromOne) {
  const at::Tensor x = at::tensor({3.0f, 4.0f}).view({1, 2});
  const at::Tensor weight = at::tensor({0.0f, 1.0f});
  const at::Tensor y = rms_norm(x, weight, 0.0);
  const float rms = std::sqrt(12.5f);
  EXPECT_NEAR(y[0][0].item<float>(), 3 / rms, 1e-6);
  EXPECT_NEAR(y[0][1].item<float>(), 2 * 4 / rms, 1e-6);
}

TEST(RmsNorm, EpsilonIsInsideTheRoot) {
  const at::Tensor x = at::zeros({1, 4}).fill_(1e-3);
  const at::Tensor y = rms_norm(x, at::zeros({4}), 1e-6);
  EXPECT_NEAR(y[0][0].item<double>(), 1e-3 / std::sqrt(2e-6), 1e-5);
}

TEST(RmsNorm, KeepsBf16OutsideAndFp32Inside) {
  const at::Tensor x = (at::arange(64, at::kFloat) * 0.37).view({2, 32});
  const at::Tensor weight = at::zeros({32}).fill_(0.25);
  const at::Tensor y = rms_norm(x.to(at::kBFloat16), weight, 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const at::Tensor ref = rms_norm(x.to(at::kBFloat16).to(at::kFloat), weight, 1e-6);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), ref, 8e-3, 1e-6));
}

TEST(AdaRmsNorm, ScalesAndShiftsPerSample) {
  const at::Tensor x = at::zeros({2, 3, 4}).fill_(2.0);
  const at::Tensor scale = at::tensor({1.0f, 0.0f}).view({2, 1}).expand({2, 4}).contiguous();
  const at::Tensor shift = at::tensor({0.0f, 5.0f}).view({2, 1}).expand({2, 4}).contiguous();
  const at::Tensor y = ada_rms_norm(x, scale, shift, 0.0);
  EXPECT_NEAR(y[0][2][3].item<float>(), 2.0f, 1e-6);
  EXPECT_NEAR(y[1][0][0].item<float>(), 6.0f, 1e-6);
}

/// Central differences in double.
template <class F>
void check_gradient(const F& f, at::Tensor x) {
  x = x.to(at::kDouble).detach().requires_grad_(true);
  f(x).backward();
  const at::Tensor grad = x.grad();
  at::Tensor probe = x.detach().clone();
  const double h = 1e-6;
  for (int64_t i = 0; i < probe.numel(); ++i) {
    at::Tensor cell = probe.flatten()[i];
    const double keep = cell.template item<double>();
    cell.fill_(keep + h);
    const double up = f(probe).template item<double>();
    cell.fill_(keep - h);
    const double down = f(probe).template item<double>();
    cell.fill_(keep);
    const double numeric = (up - down) / (2 * h);
    EXPECT_NEAR(grad.flatten()[i].template item<double>(), numeric, 1e-5 + 1e-3 * std::abs(numeric))
        << "element " << i;
  }
}

at::Tensor wave(std::vector<int64_t> shape, double phase) {
  int64_t n = 1;
  for (const int64_t s : shape) n *= s;
  return (at::arange(n, at::kDouble) * 1.3 + phase).sin().view(shape);
}

TEST(RmsNorm, GradientIsRight) {
  const at::Tensor weight = wave({5}, 0.2), probe = wave({3, 5}, 0.9);
  check_gradient([&](const at::Tensor& x) { return rms_norm(x, weight, 1e-6).mul(probe).sum(); },
                 wave({3, 5}, 0.5));
  const at::Tensor x = wave({3, 5}, 0.5);
  check_gradient([&](const at::Tensor& w) { return rms_norm(x, w, 1e-6).mul(probe).sum(); },
                 weight);
}

TEST(AdaRmsNorm, GradientIsRight) {
  const at::Tensor x = wave({2, 3, 4}, 0.1), scale = wave({2, 4}, 0.7), shift = wave({2, 4}, 1.7),
                   probe = wave({2, 3, 4}, 2.2);
  check_gradient(
      [&](const at::Tensor& v) { return ada_rms_norm(v, scale, shift, 1e-6).mul(probe).sum(); }, x);
  check_gradient(
      [&](const at::Tensor& v) { return ada_rms_norm(x, v, shift, 1e-6).mul(probe).sum(); }, scale);
  check_gradient(
      [&](const at::Tensor& v) { return ada_rms_norm(x, scale, v, 1e-6).mul(probe).sum(); }, shift);
}

TEST(Geglu, UsesTheTanhForm) {
  const at::Tensor y = geglu(at::tensor({1.0, 2.0}, at::kDouble), false);
  const double x = 1.0, inner = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
  EXPECT_NEAR(y.item<double>(), 2 * 0.5 * x * (1 + std::tanh(inner)), 1e-9);
}

}  // namespace
}  // namespace longship::nn
