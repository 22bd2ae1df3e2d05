#include "ops/swiglu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/silu.h>

#include "base/error.h"
#include "op_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using namespace testing;  // op_support

/// The definition, written with the tensor library.
at::Tensor composite(const at::Tensor& gate_up) {
  const auto parts = gate_up.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

class SwigluWidths : public ::testing::TestWithParam<int64_t> {};

TEST_P(SwigluWidths, ForwardMatchesDefinition) {
  const at::Tensor x = random({3, 5, 2 * GetParam()}, at::kFloat) * 3.0;
  EXPECT_TRUE(close(swiglu(x), composite(x)));
}

TEST_P(SwigluWidths, GradientMatchesCompositeAutograd) {
  const at::Tensor x = random({7, 2 * GetParam()}).set_requires_grad(true);
  const at::Tensor theirs = leaf_on(x, at::kCPU);
  const at::Tensor weight = random({7, GetParam()});
  (swiglu(x) * weight).sum().backward();
  (composite(theirs) * weight).sum().backward();
  EXPECT_TRUE(close(x.grad(), theirs.grad()));
}

INSTANTIATE_TEST_SUITE_P(Widths, SwigluWidths, ::testing::Values(1, 5, 8, 33, 64));

TEST(Swiglu, NumericalGradientInFloat64) {
  const at::Tensor x = random({4, 6}).set_requires_grad(true);
  const at::Tensor weight = random({4, 3});
  expect_numeric_gradients([&] { return (swiglu(x) * weight).sum(); }, {x});
}

TEST(Swiglu, BFloat16RoundsOnlyTheResult) {
  const at::Tensor x = random({20, 64}, at::kBFloat16);
  const at::Tensor y = swiglu(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // One rounding: half a unit of the 8 significant bits.
  EXPECT_TRUE(close(y, composite(x.to(at::kFloat)), 1e-7, 1.0 / 256));
}

TEST(Swiglu, TakesStridedInputs) {
  const at::Tensor base = random({12, 6}, at::kFloat);
  EXPECT_TRUE(same_bits(swiglu(base.t()), swiglu(base.t().contiguous())));
}

TEST(Swiglu, ZeroRowsAndMetaShapes) {
  EXPECT_EQ(swiglu(at::empty({0, 8})).sizes(), at::IntArrayRef({0, 4}));
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor x = at::empty({3, 4, 16}, meta.dtype(at::kBFloat16)).set_requires_grad(true);
  const at::Tensor y = swiglu(x);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 4, 8}));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(Swiglu, WrongShapesNameTheOperator) {
  try {
    swiglu(at::empty({2, 7}));
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("swiglu: gate_up must be [..., 2H], got [2, 7]"));
  }
  EXPECT_THROW(swiglu_backward(at::empty({2, 3}), at::empty({2, 8})), ShapeError);
}

TEST(SwigluGpu, MatchesCpuForwardAndBackward) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  struct Case {
    int64_t rows, width;
    bool shifted;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, width, shifted] :
         {Case{7, 5, false}, Case{1, 1, false}, Case{300, 1024, false}, Case{65, 33, false},
          Case{1000, 8, false}, Case{37, 64, true}, Case{220, 6144, false}, Case{50, 4096, true},
          Case{0, 16, false}}) {
      const at::Tensor x = random({rows, 2 * width}, type) * 2.0;
      const at::Tensor dy = random({rows, width}, type);
      at::Tensor in = x.to(at::kCUDA), g = dy.to(at::kCUDA);
      if (shifted) in = misaligned(in), g = misaligned(g);
      EXPECT_TRUE(close(swiglu(in), swiglu(x))) << rows << "x" << width << " " << type;
      EXPECT_TRUE(close(swiglu_backward(g, in), swiglu_backward(dy, x)))
          << rows << "x" << width << " " << type;
    }
  }
}

TEST(SwigluGpu, ExtremeValues) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const double gate : {-1e10, -300.0, -90.0, -20.0, -8.0, 0.0, 8.0, 20.0, 300.0, 1e10}) {
    const at::Tensor x = at::full({1, 16}, gate, at::TensorOptions(at::kCUDA));
    x.narrow(1, 8, 8).fill_(1.0);
    const at::Tensor dy = at::full({1, 8}, 1.0);
    EXPECT_TRUE(close(swiglu(x), swiglu(x.cpu()))) << gate;
    EXPECT_TRUE(close(swiglu_backward(dy.to(at::kCUDA), x), swiglu_backward(dy, x.cpu()))) << gate;
  }
}

TEST(SwigluGpu, SameBitsTwice) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor x = random({500, 2 * 2048}, at::kBFloat16, at::kCUDA);
  const at::Tensor dy = random({500, 2048}, at::kBFloat16, at::kCUDA);
  EXPECT_TRUE(same_bits(swiglu(x), swiglu(x)));
  EXPECT_TRUE(same_bits(swiglu_backward(dy, x), swiglu_backward(dy, x)));
}

}  // namespace
}  // namespace longship::ops
