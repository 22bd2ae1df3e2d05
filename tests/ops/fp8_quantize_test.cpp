// Rounding, saturation, transposes and sums of the FP8 operators on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "fp8_test_util.h"
#include "ops/fp8.h"

namespace longship::ops {
namespace {

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kE5M2 = at::kFloat8_e5m2;

/// Value of a code by the definition of the format.
double decode(int code, at::ScalarType format) {
  const int mantissa_bits = format == kE4M3 ? 3 : 2;
  const int bias = format == kE4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  if (format == kE4M3 && (code & 0x7f) == 0x7f) return NAN;
  if (format == kE5M2 && exponent == 31) return NAN;  // infinities too: never written
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1.0 + fraction, exponent - bias);
}

/// The nearest code, ties to the even one, found by trying all.
int nearest(double x, at::ScalarType format) {
  int best = 0;
  double distance = INFINITY;
  for (int code = std::signbit(x) ? 128 : 0; code < (std::signbit(x) ? 256 : 128); ++code) {
    const double value = decode(code, format);
    if (std::isnan(value)) continue;
    const double d = std::abs(value - x);
    if (d < distance || (d == distance && code % 2 == 0)) {
      distance = d;
      best = code;
    }
  }
  return best;
}

TEST(Fp8Quantize, LargestValues) {
  EXPECT_EQ(fp8_max(kE4M3), decode(0x7e, kE4M3));
  EXPECT_EQ(fp8_max(kE5M2), decode(0x7b, kE5M2));
  EXPECT_THROW(fp8_max(at::kHalf), ShapeError);
}

TEST(Fp8Quantize, EveryValueGoesToTheNearestCode) {
  for (const at::ScalarType format : {kE4M3, kE5M2}) {
    const at::Tensor x = random_matrix({48, 80}, at::kFloat, 3.0);
    x.mutable_data_ptr<float>()[5] = 1e-9f;  // below the smallest
    x.mutable_data_ptr<float>()[6] = -0.0f;
    const Fp8Matrix out = fp8_quantize(x, format, {});
    const float amax = x.abs().max().item<float>();
    const float scale = static_cast<float>(fp8_max(format)) / amax;
    EXPECT_EQ(out.inv_scale.item<float>(), 1.0f / scale);
    const at::Tensor got = codes(out.q);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const float scaled = x.const_data_ptr<float>()[i] * scale;
      ASSERT_EQ(got.const_data_ptr<uint8_t>()[i], nearest(scaled, format)) << scaled;
    }
  }
}

TEST(Fp8Quantize, TiesGoToEven) {
  // Halfway between neighbours of e4m3: 1 + 1/16 -> 1, 1 + 3/16 -> 1 + 1/4.
  at::Tensor x = at::zeros({16, 16});
  x[0][0] = 1.0 + 1.0 / 16;
  x[0][1] = 1.0 + 3.0 / 16;
  x[0][2] = -(1.0 + 3.0 / 16);
  const Fp8Matrix out = fp8_quantize(x, kE4M3, {.states = one_state(1.0f, kE4M3)});
  const at::Tensor v = values(out.q, out.inv_scale);
  EXPECT_EQ(v[0][0].item<float>(), 1.0f);
  EXPECT_EQ(v[0][1].item<float>(), 1.25f);
  EXPECT_EQ(v[0][2].item<float>(), -1.25f);
}

TEST(Fp8Quantize, TransposedCopyIsTheTranspose) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {16, 16}, {48, 80}, {128, 128}, {144, 272}, {16, 400}}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random_matrix({rows, cols}, type);
      const Fp8Matrix both = fp8_quantize(x, kE5M2, {});
      EXPECT_EQ(both.q_t.sizes(), at::IntArrayRef({cols, rows}));
      EXPECT_TRUE(at::equal(codes(both.q_t), codes(both.q).t()));
      const Fp8Matrix rows_only = fp8_quantize(x, kE5M2, {}, {.rows = true, .transposed = false});
      EXPECT_TRUE(same_codes(rows_only.q, both.q));
      EXPECT_FALSE(rows_only.q_t.defined());
      const Fp8Matrix columns = fp8_quantize(x, kE5M2, {}, {.rows = false, .transposed = true});
      EXPECT_TRUE(same_codes(columns.q_t, both.q_t));
      EXPECT_FALSE(columns.q.defined());
    }
  }
}

TEST(Fp8Quantize, BeyondTheScaleIsSaturated) {
  at::Tensor x = at::zeros({16, 16});
  x[0][0] = 1e4;
  x[0][1] = -449.0;
  x[0][2] = 447.0;
  const Fp8Matrix out = fp8_quantize(x, kE4M3, {.states = one_state(1.0f, kE4M3)});
  const at::Tensor v = values(out.q, out.inv_scale);
  EXPECT_EQ(v[0][0].item<float>(), 448.0f);
  EXPECT_EQ(v[0][1].item<float>(), -448.0f);
  EXPECT_EQ(v[0][2].item<float>(), 448.0f);
}

TEST(Fp8Quantize, NonFiniteValuesBecomeNaN) {
  for (const at::ScalarType format : {kE4M3, kE5M2}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      at::Tensor x = random_matrix({16, 32}, at::kFloat);
      x[3][7] = bad;
      // A given scale: that element only. The matrix's own scale: everything.
      const Fp8Matrix delayed = fp8_quantize(x, format, {.states = one_state(8.0f, format)});
      const at::Tensor nan = at::isnan(values(delayed.q, delayed.inv_scale));
      EXPECT_EQ(nan.sum().item<int64_t>(), 1);
      EXPECT_TRUE(nan[3][7].item<bool>());
      const Fp8Matrix current = fp8_quantize(x, format, {});
      EXPECT_TRUE(at::isnan(values(current.q, current.inv_scale)).all().item<bool>());
    }
  }
}

TEST(Fp8Quantize, ZerosAndTinyValues) {
  const Fp8Matrix zeros = fp8_quantize(at::zeros({16, 16}), kE4M3, {});
  EXPECT_EQ(zeros.inv_scale.item<float>(), 1.0f);
  EXPECT_EQ(codes(zeros.q).sum().item<int64_t>(), 0);
  const Fp8Matrix tiny = fp8_quantize(at::full({16, 16}, 1e-38f), kE4M3, {});
  EXPECT_EQ(tiny.inv_scale.item<float>(), std::ldexp(1.0f, -100));
}

TEST(Fp8Quantize, MarginLeavesRoom) {
  const at::Tensor x = random_matrix({16, 16}, at::kFloat);
  const Fp8Matrix out = fp8_quantize(x, kE4M3, {.margin = 1.0});
  EXPECT_EQ(out.q.to(at::kFloat).abs().max().item<float>(), 224.0f);
}

TEST(Fp8Quantize, ColumnSums) {
  const at::Tensor x = random_matrix({160, 48}, at::kBFloat16);
  const at::Tensor expected = x.to(at::kDouble).sum({0}, false);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Fp8Matrix out = fp8_quantize(x, kE5M2, {}, {.column_sums = type});
    EXPECT_EQ(out.column_sums.scalar_type(), type);
    EXPECT_TRUE(at::equal(out.column_sums, expected.to(type)));
  }
}

TEST(Fp8Quantize, ZeroRows) {
  const Fp8Matrix out = fp8_quantize(at::empty({0, 32}), kE4M3, {}, {.column_sums = at::kFloat});
  EXPECT_EQ(out.q.sizes(), at::IntArrayRef({0, 32}));
  EXPECT_EQ(out.q_t.sizes(), at::IntArrayRef({32, 0}));
  EXPECT_EQ(out.inv_scale.item<float>(), 1.0f);
  EXPECT_TRUE(at::equal(out.column_sums, at::zeros({32})));
}

TEST(Fp8Quantize, WrongArgumentsAreNamed) {
  EXPECT_THROW(fp8_quantize(at::zeros({15, 16}), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_quantize(at::zeros({16, 24}), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_quantize(at::zeros({16, 16}), at::kHalf, {}), ShapeError);
  EXPECT_THROW(fp8_quantize(at::zeros({16, 16}, at::kDouble), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_quantize(at::zeros({32, 16}).t(), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_quantize(at::zeros({2, 16, 16}), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_geglu_quantize(at::zeros({16, 16}), kE4M3, {}), ShapeError);
  EXPECT_THROW(fp8_geglu_backward_quantize(at::zeros({16, 16}), at::zeros({16, 64}), kE4M3, {}),
               ShapeError);
  const Fp8Scale beyond{.states = one_state(1.0f, kE4M3), .index = 1};
  EXPECT_THROW(fp8_quantize(at::zeros({16, 16}), kE4M3, beyond), ShapeError);
  try {
    fp8_quantize(at::zeros({15, 16}), kE4M3, {});
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("multiples of 16"));
    EXPECT_THAT(e.what(), ::testing::HasSubstr("[15, 16]"));
  }
}

TEST(Fp8Amax, AnyShapeAndDtype) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t size : {1, 7, 1000}) {
      const at::Tensor x = random_matrix({size}, type);
      EXPECT_EQ(fp8_amax(x).item<float>(), x.to(at::kFloat).abs().max().item<float>());
    }
  }
  EXPECT_EQ(fp8_amax(at::empty({0})).item<float>(), 0.0f);
  EXPECT_TRUE(std::isnan(fp8_amax(at::full({3}, NAN)).item<float>()));
}

TEST(Fp8Geglu, ForwardIsTheQuantisedProduct) {
  const at::Tensor gate_up = random_matrix({48, 160}, at::kFloat, 2.0);
  const auto parts = gate_up.chunk(2, 1);
  const at::Tensor y =
      (at::gelu(parts[0].to(at::kDouble), "tanh") * parts[1].to(at::kDouble)).to(at::kFloat);
  const Fp8Matrix out = fp8_geglu_quantize(gate_up, kE4M3, {});
  const Fp8Matrix expected = fp8_quantize(y.contiguous(), kE4M3, {});
  EXPECT_TRUE(same_codes(out.q, expected.q));
  EXPECT_TRUE(same_codes(out.q_t, expected.q_t));
  EXPECT_TRUE(at::equal(out.inv_scale, expected.inv_scale));
}

TEST(Fp8Geglu, BackwardIsTheQuantisedGradient) {
  const at::Tensor gate_up = random_matrix({32, 96}, at::kFloat, 2.0);
  const at::Tensor wide = gate_up.to(at::kDouble).set_requires_grad(true);
  const auto parts = wide.chunk(2, 1);
  const at::Tensor dy = random_matrix({32, 48}, at::kFloat);
  (at::gelu(parts[0], "tanh") * parts[1] * dy.to(at::kDouble)).sum().backward();
  const Fp8Matrix expected = fp8_quantize(wide.grad().to(at::kFloat), kE5M2, {});
  const Fp8Matrix out = fp8_geglu_backward_quantize(dy, gate_up, kE5M2, {});
  // The two formulas differ by a rounding, which may turn a tie.
  const at::Tensor difference =
      (values(out.q, out.inv_scale) - values(expected.q, expected.inv_scale)).abs();
  EXPECT_LT((difference > 1e-6).to(at::kFloat).mean().item<float>(), 0.01f);
  EXPECT_LT(relative_error(values(out.q, out.inv_scale), values(expected.q, expected.inv_scale)),
            0.01);
  EXPECT_TRUE(at::equal(codes(out.q_t), codes(out.q).t()));
}

TEST(Fp8Matmul, IsTheProductOfTheValues) {
  const Fp8Matrix a = fp8_quantize(random_matrix({32, 64}, at::kFloat), kE5M2, {});
  const Fp8Matrix b = fp8_quantize(random_matrix({48, 64}, at::kFloat, 0.1), kE4M3, {});
  const at::Tensor bias = random_matrix({48}, at::kFloat);
  const at::Tensor expected = at::mm(values(a.q, a.inv_scale), values(b.q, b.inv_scale).t());
  const at::Tensor plain =
      fp8_matmul(a.q, b.q, a.inv_scale, b.inv_scale, std::nullopt, at::kFloat, true);
  EXPECT_TRUE(at::allclose(plain, expected, 1e-6, 1e-6));
  const at::Tensor with_bias =
      fp8_matmul(a.q, b.q, a.inv_scale, b.inv_scale, bias, at::kBFloat16, true);
  EXPECT_TRUE(
      at::equal(with_bias, (expected + bias.to(at::kBFloat16).to(at::kFloat)).to(at::kBFloat16)));
  EXPECT_THROW(fp8_matmul(a.q, a.q, a.inv_scale, a.inv_scale, std::nullopt, at::kFloat, true),
               ShapeError);
  EXPECT_THROW(fp8_matmul(a.q, b.q_t, a.inv_scale, b.inv_scale, std::nullopt, at::kFloat, true),
               ShapeError);
}

TEST(Fp8Quantize, MetaShapesEqualRealShapes) {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const Fp8Matrix out =
      fp8_quantize(at::empty({18304, 2048}, meta), kE4M3, {}, {.column_sums = at::kFloat});
  EXPECT_EQ(out.q.sizes(), at::IntArrayRef({18304, 2048}));
  EXPECT_EQ(out.q_t.sizes(), at::IntArrayRef({2048, 18304}));
  EXPECT_EQ(out.column_sums.sizes(), at::IntArrayRef({2048}));
  const Fp8Matrix act = fp8_geglu_quantize(at::empty({18304, 32768}, meta), kE4M3, {});
  EXPECT_EQ(act.q_t.sizes(), at::IntArrayRef({16384, 18304}));
  const Fp8Matrix gradient = fp8_geglu_backward_quantize(
      at::empty({18304, 16384}, meta), at::empty({18304, 32768}, meta), kE5M2, {});
  EXPECT_EQ(gradient.q_t.sizes(), at::IntArrayRef({32768, 18304}));
  EXPECT_TRUE(gradient.q.is_meta());
  const at::Tensor y = fp8_matmul(out.q, at::empty({32, 2048}, meta.dtype(kE4M3)), out.inv_scale,
                                  out.inv_scale, std::nullopt, at::kBFloat16, true);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({18304, 32}));
  EXPECT_EQ(fp8_amax(at::empty({3, 4}, meta)).sizes(), at::IntArrayRef({1}));
}

}  // namespace
}  // namespace longship::ops
