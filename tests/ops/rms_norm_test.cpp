#include "ops/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "norm_support.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

struct Shape {
  int64_t rows, groups, width;
};

void PrintTo(const Shape& s, std::ostream* out) {
  *out << s.rows << "x" << s.width << " groups " << s.groups;
}

/// The definition, written with the tensor library.
at::Tensor composite(const at::Tensor& x, const at::Tensor& scale,
                     const std::optional<at::Tensor>& shift, double eps) {
  const int64_t groups = scale.dim() == 2 ? scale.size(0) : 1;
  const int64_t width = x.size(-1);
  const at::Tensor grouped = x.reshape({groups, -1, width});
  const at::Tensor rstd = at::rsqrt(grouped.pow(2).mean({-1}, true) + eps);
  at::Tensor y = grouped * rstd * (1 + scale.reshape({groups, 1, width}));
  if (shift.has_value()) y = y + shift->reshape({groups, 1, width});
  return y.reshape(x.sizes());
}

using test::random;

test::Tensors with_shift(const test::Tensors& in) {
  return {rms_norm(in[0], in[1], in[2], 1e-6)};
}

test::Tensors without_shift(const test::Tensors& in) {
  return {rms_norm(in[0], in[1], std::nullopt, 1e-6)};
}

class RmsNormShapes : public ::testing::TestWithParam<Shape> {};

TEST_P(RmsNormShapes, ForwardMatchesDefinition) {
  const auto& [rows, groups, width] = GetParam();
  const at::Tensor x = random({rows, width}, at::kFloat);
  const at::Tensor scale = random({groups, width}, at::kFloat);
  const at::Tensor shift = random({groups, width}, at::kFloat);
  EXPECT_TRUE(
      at::allclose(rms_norm(x, scale, shift, 1e-6), composite(x, scale, shift, 1e-6), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(rms_norm(x, scale, std::nullopt, 1e-6),
                           composite(x, scale, std::nullopt, 1e-6), 1e-5, 1e-5));
}

TEST_P(RmsNormShapes, GradientsMatchCompositeAutograd) {
  const auto& [rows, groups, width] = GetParam();
  std::vector<at::Tensor> ours, theirs;
  for (const auto& sizes : {std::vector<int64_t>{rows, width}, {groups, width}, {groups, width}}) {
    ours.push_back(random(sizes).set_requires_grad(true));
    theirs.push_back(ours.back().detach().clone().set_requires_grad(true));
  }
  const at::Tensor weight = random({rows, width});
  (rms_norm(ours[0], ours[1], ours[2], 1e-6) * weight).sum().backward();
  (composite(theirs[0], theirs[1], theirs[2], 1e-6) * weight).sum().backward();
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-9, 1e-10)) << "argument " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormShapes,
                         ::testing::Values(Shape{1, 1, 1}, Shape{7, 1, 5}, Shape{64, 1, 33},
                                           Shape{65, 1, 48}, Shape{130, 1, 128}, Shape{12, 4, 20},
                                           Shape{200, 2, 65}, Shape{6, 6, 17}));

TEST(RmsNorm, NumericalGradientInFloat64) {
  const at::Tensor x = random({6, 5}).set_requires_grad(true);
  const at::Tensor scale = random({2, 5}).set_requires_grad(true);
  const at::Tensor shift = random({2, 5}).set_requires_grad(true);
  const at::Tensor weight = random({6, 5});
  const auto value = [&] { return (rms_norm(x, scale, shift, 1e-6) * weight).sum(); };
  value().backward();
  constexpr double kStep = 1e-6;
  for (const at::Tensor& argument : {x, scale, shift}) {
    at::Tensor data = argument.detach();
    for (int64_t i = 0; i < data.numel(); ++i) {
      double* element = data.mutable_data_ptr<double>() + i;
      const double saved = *element;
      *element = saved + kStep;
      const double up = value().item<double>();
      *element = saved - kStep;
      const double down = value().item<double>();
      *element = saved;
      const double numeric = (up - down) / (2 * kStep);
      EXPECT_NEAR(argument.grad().contiguous().const_data_ptr<double>()[i], numeric,
                  1e-5 + 1e-3 * std::abs(numeric));
    }
  }
}

TEST(RmsNorm, BFloat16RoundsOnlyTheResult) {
  const at::Tensor x = random({40, 64}, at::kBFloat16);
  const at::Tensor scale = random({64}, at::kFloat);
  const at::Tensor expected =
      composite(x.to(at::kFloat), scale, std::nullopt, 1e-6).to(at::kBFloat16);
  const at::Tensor y = rms_norm(x, scale, std::nullopt, 1e-6);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), expected.to(at::kFloat), 8e-3, 1e-6));
}

TEST(RmsNorm, SameBitsForAnyNumberOfThreads) {
  const at::Tensor base = random({1000, 96}, at::kFloat);
  const at::Tensor weight = random({1000, 96}, at::kFloat);
  std::vector<at::Tensor> gradients;
  const int saved = at::get_num_threads();
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    const at::Tensor x = base.clone().set_requires_grad(true);
    const at::Tensor scale = at::zeros({96}).set_requires_grad(true);
    (rms_norm(x, scale, std::nullopt, 1e-6) * weight).sum().backward();
    gradients.push_back(scale.grad());
    gradients.push_back(x.grad());
  }
  at::set_num_threads(saved);
  for (size_t i = 2; i < gradients.size(); ++i)
    EXPECT_TRUE(at::equal(gradients[i], gradients[i % 2]));
}

TEST(RmsNorm, ZeroRows) {
  const at::Tensor y = rms_norm(at::empty({0, 8}), at::zeros({8}), std::nullopt, 1e-6);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 8}));
}

TEST(RmsNorm, MetaShapesEqualRealShapes) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const at::Tensor y =
      rms_norm(at::empty({3, 4, 16}, meta), at::empty({16}, meta), std::nullopt, 1e-6);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 4, 16}));
}

TEST(RmsNorm, WrongWidthNamesTheShapes) {
  try {
    rms_norm(at::zeros({2, 8}), at::zeros({7}), std::nullopt, 1e-6);
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("D = 8, got [7]"));
  }
}

TEST(RmsNorm, UnevenGroupsAreRefused) {
  EXPECT_THROW(rms_norm(at::zeros({5, 8}), at::zeros({2, 8}), std::nullopt, 1e-6), ShapeError);
}

TEST(RmsNorm, ZeroRowsGiveZeroParameterGradients) {
  const test::OpRun run =
      test::run_op(with_shift, {random({0, 8}), random({2, 8}), random({2, 8})}, {random({0, 8})});
  for (size_t i : {1, 2}) EXPECT_TRUE(at::equal(run.gradients[i], at::zeros({2, 8}, at::kDouble)));
}

TEST(RmsNorm, GradientsHaveTheDtypeOfTheirParameter) {
  const test::OpRun run = test::run_op(
      with_shift,
      {random({4, 8}, at::kBFloat16), random({2, 8}, at::kFloat), random({2, 8}, at::kBFloat16)},
      {random({4, 8}, at::kBFloat16)});
  EXPECT_EQ(run.gradients[1].scalar_type(), at::kFloat);
  EXPECT_EQ(run.gradients[2].scalar_type(), at::kBFloat16);
}

TEST(RmsNorm, StridedParametersOfThreeDimensionalInput) {
  const at::Tensor x = random({3, 5, 8}), modulation = random({3, 24});
  const at::Tensor scale = modulation.narrow(1, 8, 8), shift = modulation.narrow(1, 16, 8);
  EXPECT_TRUE(at::equal(rms_norm(x, scale, shift, 1e-6),
                        rms_norm(x, scale.contiguous(), shift.contiguous(), 1e-6)));
}

/// Llama and Qwen: the weight is the whole factor.
test::Tensors whole_factor(const test::Tensors& in) {
  return {rms_norm(in[0], in[1], std::nullopt, 1e-6, /*offset=*/0.0)};
}

TEST(RmsNorm, OffsetZeroTakesTheWeightAsTheWholeFactor) {
  const test::Tensors inputs = {random({70, 12}), random({12})}, gradients = {random({70, 12})};
  const test::Op definition = [](const test::Tensors& in) {
    return test::Tensors{composite(in[0], in[1] - 1.0, std::nullopt, 1e-6)};
  };
  const test::OpRun ours = test::run_op(whole_factor, inputs, gradients);
  const test::OpRun theirs = test::run_op(definition, inputs, gradients);
  EXPECT_TRUE(at::allclose(ours.outputs[0], theirs.outputs[0], 1e-10, 1e-10));
  test::expect_close_gradients(theirs, ours, 1e-9);
  test::expect_numerical_gradients(whole_factor, {random({6, 5}), random({5})}, {random({6, 5})});
}

struct GpuCase {
  Shape shape;
  bool offset = false;
};

TEST(RmsNormGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  // Every path of the kernels: several steps per team, one to four teams, teams with idle threads,
  // rows too wide or too odd for teams.
  const std::vector<GpuCase> cases = {
      {{7, 1, 3}},     {{7, 1, 5}},       {{12, 4, 33}},          {{300, 3, 1024}},
      {{65, 1, 2048}}, {{3000, 1, 2048}}, {{300, 1, 2048}, true}, {{2500, 5, 256}},
      {{90, 3, 72}},   {{500, 1, 4096}},  {{20, 1, 4104}},        {{20, 2, 5001}},
      {{0, 2, 64}},
  };
  for (const GpuCase& c : cases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const at::ScalarType param_type : {at::kFloat, at::kBFloat16}) {
        const auto& [rows, groups, width] = c.shape;
        const test::Tensors inputs = {random({rows, width}, type),
                                      random({groups, width}, param_type),
                                      random({groups, width}, param_type)};
        const test::Tensors gradients = {random({rows, width}, type)};
        const std::string what = fmt::format("{}x{}, {} groups{}, {} with {} parameters", rows,
                                             width, groups, c.offset ? ", unaligned" : "",
                                             at::toString(type), at::toString(param_type));
        test::expect_gpu_matches_cpu(with_shift, inputs, gradients, c.offset, what);
        test::expect_gpu_matches_cpu(without_shift, {inputs[0], inputs[1]}, gradients, c.offset,
                                     what + ", no shift");
        test::expect_gpu_matches_cpu(whole_factor, {inputs[0], inputs[1]}, gradients, c.offset,
                                     what + ", whole factor");
      }
    }
  }
}

TEST(RmsNormGpu, StridedModulationOfThreeDimensionalInput) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const int64_t width : {1024, 1001}) {
    const test::Op op = [width](const test::Tensors& in) {
      return with_shift({in[0], in[1].narrow(1, 0, width), in[1].narrow(1, width, width)});
    };
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const test::Tensors inputs = {random({8, 50, width}, at::kBFloat16),
                                    random({8, 3 * width}, type)};
      test::expect_gpu_matches_cpu(op, inputs, {random({8, 50, width}, at::kBFloat16)}, false,
                                   fmt::format("width {}", width));
    }
  }
}

}  // namespace
}  // namespace longship::ops
