// head_norm_rope. Inputs in order: qkv, q_weight, k_weight; outputs: q, k, v.
#include "ops/head_norm_rope.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "norm_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using test::Op;
using test::OpRun;
using test::random;
using test::run_op;
using test::Tensors;

constexpr double kEps = 1e-6;

struct Shape {
  int64_t rows, heads, kv_heads, dim;
  int64_t width() const { return (heads + 2 * kv_heads) * dim; }
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.rows << " rows, heads " << s.heads << "+2x" << s.kv_heads << " of " << s.dim;
}

struct Tables {
  at::Tensor cos, sin;
};

Tables tables(const Shape& s, at::ScalarType type) {
  const at::Tensor angle = random({s.rows, s.dim / 2}) * 3.0;
  return {at::cos(angle).to(type), at::sin(angle).to(type)};
}

Op fused(const Shape& s, const Tables& t) {
  return [s, t](const Tensors& in) {
    const at::Device device = in[0].device();
    const auto [q, k, v] = head_norm_rope(in[0], in[1], in[2], t.cos.to(device), t.sin.to(device),
                                          s.heads, s.kv_heads, kEps);
    return Tensors{q, k, v};
  };
}

/// The definition, written with the tensor library.
Op composite(const Shape& s, const Tables& t) {
  return [s, t](const Tensors& in) {
    const auto parts = in[0]
                           .view({s.rows, s.heads + 2 * s.kv_heads, s.dim})
                           .split_with_sizes({s.heads, s.kv_heads, s.kv_heads}, 1);
    const at::Tensor c = t.cos.unsqueeze(1), n = t.sin.unsqueeze(1);
    const auto turned = [&](const at::Tensor& x, const at::Tensor& weight) {
      const at::Tensor normed = x * at::rsqrt(x.pow(2).mean({-1}, true) + kEps) * weight;
      const auto halves = normed.chunk(2, -1);
      return at::cat({halves[0] * c - halves[1] * n, halves[1] * c + halves[0] * n}, -1);
    };
    return Tensors{turned(parts[0], in[1]), turned(parts[1], in[2]), parts[2]};
  };
}

Tensors inputs_of(const Shape& s, at::ScalarType type = at::kDouble,
                  at::ScalarType weight_type = at::kDouble) {
  return {random({s.rows, s.width()}, type), random({s.dim}, weight_type),
          random({s.dim}, weight_type)};
}

Tensors gradients_of(const Shape& s, at::ScalarType type = at::kDouble) {
  return {random({s.rows, s.heads, s.dim}, type), random({s.rows, s.kv_heads, s.dim}, type),
          random({s.rows, s.kv_heads, s.dim}, type)};
}

class HeadNormRopeShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(HeadNormRopeShapes, MatchesDefinitionAndItsGradients) {
  const Shape s = GetParam();
  const Tables t = tables(s, at::kDouble);
  const Tensors inputs = inputs_of(s);
  const auto [dq, dk, dv] = [&] {
    const Tensors g = gradients_of(s);
    return std::tuple(g[0], g[1], g[2]);
  }();
  const at::Tensor none;
  for (const Tensors& gradients :
       {Tensors{dq, dk, dv}, Tensors{dq, none, none}, Tensors{none, dk, none},
        Tensors{none, none, dv}, Tensors{none, dk, dv}}) {
    const OpRun ours = run_op(fused(s, t), inputs, gradients);
    OpRun theirs = run_op(composite(s, t), inputs, gradients);
    for (size_t i = 0; i < 3; ++i) {
      if (ours.outputs[i].numel() == 0) continue;
      EXPECT_LE((ours.outputs[i] - theirs.outputs[i]).abs().max().item<double>(), 1e-10) << i;
    }
    for (size_t i = 0; i < 3; ++i) {  // what the definition does not reach is zero here
      if (!theirs.gradients[i].defined()) theirs.gradients[i] = at::zeros_like(inputs[i]);
    }
    test::expect_close_gradients(theirs, ours, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadNormRopeShapes,
                         ::testing::Values(Shape{1, 1, 1, 2}, Shape{9, 4, 2, 16}, Shape{6, 2, 2, 6},
                                           Shape{5, 0, 1, 8}, Shape{130, 3, 1, 10}));

TEST(HeadNormRope, NumericalGradientInFloat64) {
  const Shape s{4, 2, 1, 4};
  const Tables t = tables(s, at::kDouble);
  test::expect_numerical_gradients(fused(s, t), inputs_of(s), gradients_of(s));
}

TEST(HeadNormRope, BFloat16RoundsOnlyTheResult) {
  const Shape s{20, 3, 2, 32};
  for (const at::ScalarType weight_type : {at::kFloat, at::kBFloat16}) {
    const Tables t = tables(s, at::kBFloat16);
    const Tensors in = inputs_of(s, at::kBFloat16, weight_type);
    const Tensors ours = fused(s, t)(in);
    Tensors wide;
    for (const at::Tensor& x : in) wide.push_back(x.to(at::kFloat));
    const Tensors exact = composite(s, {t.cos.to(at::kFloat), t.sin.to(at::kFloat)})(wide);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ours[i].scalar_type(), at::kBFloat16);
      const at::Tensor error = (ours[i].to(at::kFloat) - exact[i]).abs() - exact[i].abs() / 256;
      EXPECT_LE(error.max().item<double>(), 1e-6) << "result " << i;
    }
  }
}

TEST(HeadNormRope, ValuesAreAViewThatNobodyCopies) {
  const Shape s{6, 2, 1, 8};
  const Tensors in = inputs_of(s, at::kFloat, at::kFloat);
  const at::Tensor v = fused(s, tables(s, at::kFloat))(in)[2];
  EXPECT_EQ(v.const_data_ptr(), in[0].const_data_ptr<float>() + 3 * s.dim);
  EXPECT_EQ(v.strides(), at::IntArrayRef({s.width(), s.dim, 1}));
}

TEST(HeadNormRope, WithoutGradientsNothingIsSaved) {
  const Shape s{4, 2, 1, 8};
  for (const at::Tensor& t : fused(s, tables(s, at::kDouble))(inputs_of(s)))
    EXPECT_FALSE(t.requires_grad());
  Tensors in = inputs_of(s);
  for (const at::Tensor& t : in) t.set_requires_grad(true);
  const at::AutoGradMode no_grad(false);
  for (const at::Tensor& t : fused(s, tables(s, at::kDouble))(in)) EXPECT_FALSE(t.requires_grad());
}

TEST(HeadNormRope, GradientsHaveTheDtypeOfTheirParameter) {
  const Shape s{7, 2, 1, 8};
  Tensors in = inputs_of(s, at::kBFloat16, at::kFloat);
  in[2] = in[2].to(at::kBFloat16);
  const OpRun run = run_op(fused(s, tables(s, at::kBFloat16)), in, gradients_of(s, at::kBFloat16));
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(run.gradients[i].scalar_type(), in[i].scalar_type()) << i;
  }
}

TEST(HeadNormRope, SameBitsForAnyNumberOfThreads) {
  const Shape s{700, 3, 1, 16};
  const Tables t = tables(s, at::kFloat);
  const Tensors in = inputs_of(s, at::kFloat, at::kFloat), gradients = gradients_of(s, at::kFloat);
  std::vector<OpRun> runs;
  const int saved = at::get_num_threads();
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    runs.push_back(run_op(fused(s, t), in, gradients));
  }
  at::set_num_threads(saved);
  for (size_t r = 1; r < runs.size(); ++r) {
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(runs[r].outputs[i], runs[0].outputs[i])) << i;
      EXPECT_TRUE(at::equal(runs[r].gradients[i], runs[0].gradients[i])) << i;
    }
  }
}

TEST(HeadNormRope, ZeroRowsGiveZeroParameterGradients) {
  const Shape s{0, 2, 1, 8};
  const OpRun run = run_op(fused(s, tables(s, at::kDouble)), inputs_of(s), gradients_of(s));
  EXPECT_EQ(run.outputs[0].sizes(), at::IntArrayRef({0, 2, 8}));
  for (const size_t i : {1, 2}) {
    EXPECT_TRUE(at::equal(run.gradients[i], at::zeros({8}, at::kDouble))) << i;
  }
}

TEST(HeadNormRope, MetaShapesEqualRealShapes) {
  const Shape s{5, 4, 2, 8};
  Tensors leaves;
  for (const at::Tensor& t : inputs_of(s, at::kBFloat16, at::kFloat))
    leaves.push_back(t.to(at::kMeta).set_requires_grad(true));
  const Tensors out = fused(s, tables(s, at::kFloat))(leaves);
  const Tensors real = fused(s, tables(s, at::kFloat))(inputs_of(s, at::kBFloat16, at::kFloat));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i].sizes(), real[i].sizes()) << i;
    EXPECT_EQ(out[i].strides(), real[i].strides()) << i;
    EXPECT_EQ(out[i].scalar_type(), real[i].scalar_type()) << i;
  }
  (out[0].sum() + out[1].sum()).backward();
  for (const at::Tensor& t : leaves) {
    EXPECT_EQ(t.grad().sizes(), t.sizes());
    EXPECT_EQ(t.grad().scalar_type(), t.scalar_type());
  }
}

TEST(HeadNormRope, TakesStridedInputs) {
  const Shape s{6, 2, 1, 8};
  const Tables t = tables(s, at::kFloat);
  const Tensors in = inputs_of(s, at::kFloat, at::kFloat);
  const Tensors strided =
      fused(s, {t.cos.t().contiguous().t(), t.sin})({in[0].t().contiguous().t(), in[1], in[2]});
  const Tensors plain = fused(s, t)(in);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(strided[i], plain[i])) << i;
}

TEST(HeadNormRope, FaultsAreNamed) {
  const Shape s{4, 2, 1, 8};
  const Tables t = tables(s, at::kDouble);
  const auto message = [](const Op& op, const Tensors& in) -> std::string {
    try {
      op(in);
    } catch (const ShapeError& e) {
      return e.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  Tensors in = inputs_of(s);
  in[0] = random({4, 24});
  EXPECT_THAT(message(fused(s, t), in),
              HasSubstr("head_norm_rope: qkv must be [4, 32], got [4, 24]"));
  in = inputs_of(s);
  in[1] = random({7});
  EXPECT_THAT(message(fused(s, t), in), HasSubstr("q_weight [7]"));
  in = inputs_of(s);
  in[2] = random({6});
  EXPECT_THAT(message(fused(s, t), in), HasSubstr("k_weight must be [8], got [6]"));
  in = inputs_of(s);
  EXPECT_THAT(message(fused(s, tables({5, 2, 1, 8}, at::kDouble)), in),
              HasSubstr("cos must be [4, 4], got [5, 4]"));
  EXPECT_THAT(message(fused(s, {t.cos, t.sin.to(at::kFloat)}), in),
              HasSubstr("sin must be Double"));
}

struct GpuCase {
  Shape shape;
  bool offset = false;
};

TEST(HeadNormRopeGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  // Teams of 1 to 32 lanes, rows that fill no block, several rows a team, large and small shares of
  // heads, and what makes no team.
  const std::vector<GpuCase> cases = {
      {{33, 16, 8, 128}},  {{700, 16, 8, 128}}, {{700, 16, 8, 128}, true},
      {{5000, 4, 2, 128}}, {{100, 2, 1, 16}},   {{77, 5, 3, 32}},
      {{300, 4, 4, 64}},   {{130, 9, 1, 256}},  {{3000, 1, 1, 512}},
      {{200, 0, 2, 32}},   {{1, 1, 1, 2}},      {{5000, 1, 1, 6}},
      {{65, 3, 2, 22}},    {{40, 5, 1, 48}},    {{20, 2, 1, 1024}},
      {{0, 4, 2, 64}},
  };
  for (const GpuCase& c : cases) {
    const Shape& s = c.shape;
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const at::ScalarType other : {at::kFloat, at::kBFloat16}) {
        const std::string what =
            fmt::format("{}{}, {} with {} weights and angles", ::testing::PrintToString(s),
                        c.offset ? ", unaligned" : "", at::toString(type), at::toString(other));
        test::expect_gpu_matches_cpu(fused(s, tables(s, other)), inputs_of(s, type, other),
                                     gradients_of(s, type), c.offset, what);
      }
    }
  }
}

TEST(HeadNormRopeGpu, UndefinedAndStridedGradients) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const Shape& s : {Shape{150, 4, 2, 64}, Shape{50, 3, 1, 12}}) {
    const Tables t = tables(s, at::kFloat);
    const at::Tensor none;
    const Tensors inputs = inputs_of(s, at::kBFloat16, at::kBFloat16);
    const Tensors g = gradients_of(s, at::kBFloat16);
    for (const Tensors& gradients :
         {Tensors{g[0], none, none}, Tensors{none, g[1], none}, Tensors{none, none, g[2]}}) {
      test::expect_gpu_matches_cpu(fused(s, t), inputs, gradients, false, "undefined gradients");
    }
    // Views of one buffer, and one whose columns are not adjacent.
    const Op views = [s, t](const Tensors& in) {
      const Tensors out = fused(s, t)(in);
      return Tensors{at::cat({out[1], out[2]}, 1), out[0].transpose(1, 2).contiguous()};
    };
    test::expect_gpu_matches_cpu(views, inputs,
                                 {random({s.rows, 2 * s.kv_heads, s.dim}, at::kBFloat16),
                                  random({s.rows, s.dim, s.heads}, at::kBFloat16)},
                                 false, "strided gradients");
  }
}

}  // namespace
}  // namespace longship::ops
