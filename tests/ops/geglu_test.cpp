#include "ops/geglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>

#include <cmath>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

/// The definition, written with the tensor library.
at::Tensor composite(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return at::gelu(parts[0], "tanh") * parts[1];
}

class GegluWidths : public ::testing::TestWithParam<int64_t> {};

TEST_P(GegluWidths, ForwardMatchesDefinition) {
  const at::Tensor x = random({3, 5, 2 * GetParam()}, at::kFloat) * 3.0;
  EXPECT_TRUE(close(geglu(x), composite(x)));
}

TEST_P(GegluWidths, GradientMatchesCompositeAutograd) {
  const at::Tensor x = random({7, 2 * GetParam()}).set_requires_grad(true);
  const at::Tensor theirs = x.detach().clone().set_requires_grad(true);
  const at::Tensor weight = random({7, GetParam()});
  (geglu(x) * weight).sum().backward();
  (composite(theirs) * weight).sum().backward();
  EXPECT_TRUE(close(x.grad(), theirs.grad()));
}

INSTANTIATE_TEST_SUITE_P(Widths, GegluWidths, ::testing::Values(1, 5, 8, 33, 64));

TEST(Geglu, NumericalGradientInFloat64) {
  const at::Tensor x = random({4, 6}).set_requires_grad(true);
  const at::Tensor weight = random({4, 3});
  expect_numeric_gradients([&] { return (geglu(x) * weight).sum(); }, {x});
}

TEST(Geglu, BFloat16RoundsOnlyTheResult) {
  const at::Tensor x = random({20, 64}, at::kBFloat16);
  const at::Tensor y = geglu(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // One rounding: half a unit of the 8 significant bits.
  EXPECT_TRUE(close(y, composite(x.to(at::kFloat)), 1e-7, 1.0 / 256));
}

TEST(Geglu, RecomputeGivesGradientAndResult) {
  const at::Tensor x = random({9, 2 * 17}, at::kBFloat16);
  const at::Tensor dy = random({9, 17}, at::kBFloat16);
  const auto [d, y] = geglu_backward_recompute(dy, x);
  EXPECT_TRUE(same_bits(y, geglu(x)));
  EXPECT_TRUE(same_bits(d, geglu_backward(dy, x)));
  const at::Tensor leaf = leaf_on(x, at::kCPU);
  geglu(leaf).backward(dy);
  EXPECT_TRUE(same_bits(d, leaf.grad()));
}

TEST(Geglu, RecomputeRefusesToBeDifferentiated) {
  const at::Tensor x = random({2, 4}, at::kFloat).set_requires_grad(true);
  EXPECT_THROW(geglu_backward_recompute(random({2, 2}, at::kFloat), x), InternalError);
}

TEST(Geglu, TakesStridedInputs) {
  const at::Tensor base = random({12, 6}, at::kFloat);
  EXPECT_TRUE(same_bits(geglu(base.t()), geglu(base.t().contiguous())));
}

TEST(Geglu, ZeroRowsAndMetaShapes) {
  EXPECT_EQ(geglu(at::empty({0, 8})).sizes(), at::IntArrayRef({0, 4}));
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({3, 4, 16}, meta), dy = at::empty({3, 4, 8}, meta);
  EXPECT_EQ(geglu(x).sizes(), at::IntArrayRef({3, 4, 8}));
  const auto [d, y] = geglu_backward_recompute(dy, x);
  EXPECT_EQ(d.sizes(), x.sizes());
  EXPECT_EQ(y.sizes(), dy.sizes());
}

TEST(Geglu, WrongShapesNameTheOperator) {
  try {
    geglu(at::empty({2, 7}));
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("geglu: gate_up must be [..., 2H], got [2, 7]"));
  }
  EXPECT_THROW(geglu_backward(at::empty({2, 3}), at::empty({2, 8})), ShapeError);
}

TEST(GegluGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  struct Case {
    int64_t rows, width;
    bool shifted;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, width, shifted] :
         {Case{7, 5, false}, Case{1, 1, false}, Case{300, 1024, false}, Case{65, 33, false},
          Case{1000, 8, false}, Case{37, 64, true}, Case{130, 16384, false}, Case{50, 4096, true},
          Case{0, 16, false}}) {
      const at::Tensor x = random({rows, 2 * width}, type) * 2.0;
      const at::Tensor dy = random({rows, width}, type);
      at::Tensor in = x.to(at::kCUDA), g = dy.to(at::kCUDA);
      if (shifted) in = misaligned(in), g = misaligned(g);
      const auto [d, y] = geglu_backward_recompute(g, in);
      EXPECT_TRUE(same_bits(geglu(in), y));
      EXPECT_TRUE(same_bits(geglu_backward(g, in), d));
      // In fp64: the oracle's 1 + tanh(u) loses its digits in fp32 where the gate is far below
      // zero, the kernel's logistic function does not.
      const auto [d_exact, y_exact] =
          geglu_backward_recompute(dy.to(at::kDouble), x.to(at::kDouble));
      EXPECT_TRUE(close(y, y_exact.to(type))) << rows << "x" << width << " " << type;
      EXPECT_TRUE(close(d, d_exact.to(type))) << rows << "x" << width << " " << type;
    }
  }
}

TEST(GegluGpu, ExtremeValues) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const double gate : {-1e10, -300.0, -20.0, -8.0, -7.0, 0.0, 7.0, 20.0, 300.0, 1e10}) {
    const at::Tensor x = at::full({1, 16}, gate, at::TensorOptions(at::kCUDA));
    x.narrow(1, 8, 8).fill_(1.0);
    const auto [d, y] = geglu_backward_recompute(at::full({1, 8}, 1.0, x.options()), x);
    const auto [d_cpu, y_cpu] = geglu_backward_recompute(at::full({1, 8}, 1.0), x.cpu());
    EXPECT_TRUE(close(y, y_cpu)) << gate;
    EXPECT_TRUE(close(d, d_cpu)) << gate;
  }
}

TEST(GegluGpu, SameBitsTwice) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor x = random({500, 2 * 2048}, at::kBFloat16, at::kCUDA);
  const at::Tensor dy = random({500, 2048}, at::kBFloat16, at::kCUDA);
  const auto [d0, y0] = geglu_backward_recompute(dy, x);
  const auto [d1, y1] = geglu_backward_recompute(dy, x);
  EXPECT_TRUE(same_bits(d0, d1));
  EXPECT_TRUE(same_bits(y0, y1));
}

}  // namespace
}  // namespace longship::ops
