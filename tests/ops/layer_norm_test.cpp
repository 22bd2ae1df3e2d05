// layer_norm (inputs x, weight, bias) and add_layer_norm (inputs h, branch, weight, bias; outputs
// h_out, y).
#include "ops/layer_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>

#include <cmath>

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

Tensors plain(const Tensors& in) {
  return {layer_norm(in[0], in[1], in[2], kEps)};
}

Tensors fused(const Tensors& in) {
  auto [h_out, y] = add_layer_norm(in[0], in[1], in[2], in[3], kEps);
  return {h_out, y};
}

/// The definition, with the tensor library's own layer norm.
Tensors plain_composite(const Tensors& in) {
  return {at::layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], kEps)};
}

Tensors composite(const Tensors& in) {
  const at::Tensor h_out = in[0] + in[1];
  return {h_out, plain_composite({h_out, in[2], in[3]})[0]};
}

struct Case {
  int64_t rows, width;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rows << "x" << c.width;
}

Tensors inputs_of(const Case& c, at::ScalarType type = at::kDouble,
                  at::ScalarType param_type = at::kDouble) {
  return {random({c.rows, c.width}, type), random({c.rows, c.width}, type),
          random({c.width}, param_type), random({c.width}, param_type)};
}

Tensors without_addition(const Tensors& in) {
  return {in[0], in[2], in[3]};
}

class LayerNormCases : public ::testing::TestWithParam<Case> {};

TEST_P(LayerNormCases, MatchesDefinitionAndItsGradients) {
  const Case c = GetParam();
  const Tensors inputs = without_addition(inputs_of(c));
  const Tensors gradients = {random({c.rows, c.width})};
  const OpRun ours = run_op(plain, inputs, gradients);
  const OpRun theirs = run_op(plain_composite, inputs, gradients);
  EXPECT_LE((ours.outputs[0] - theirs.outputs[0]).abs().max().item<double>(), 1e-10);
  test::expect_close_gradients(theirs, ours, 1e-9);
}

TEST_P(LayerNormCases, AdditionMatchesDefinitionAndItsGradients) {
  const Case c = GetParam();
  const Tensors inputs = inputs_of(c);
  const at::Tensor dh = random({c.rows, c.width}), dy = random({c.rows, c.width});
  for (const Tensors& gradients : {Tensors{dh, dy}, Tensors{dh, {}}, Tensors{{}, dy}}) {
    const OpRun ours = run_op(fused, inputs, gradients);
    const OpRun theirs = run_op(composite, inputs, gradients);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LE((ours.outputs[i] - theirs.outputs[i]).abs().max().item<double>(), 1e-10);
    }
    test::expect_close_gradients(theirs, ours, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LayerNormCases,
                         ::testing::Values(Case{1, 2}, Case{7, 5}, Case{130, 33}, Case{64, 48},
                                           Case{200, 65}));

TEST(LayerNorm, NumericalGradientInFloat64) {
  const Case c = {5, 6};
  const at::Tensor dh = random({5, 6}), dy = random({5, 6});
  test::expect_numerical_gradients(plain, without_addition(inputs_of(c)), {dy});
  test::expect_numerical_gradients(fused, inputs_of(c), {dh, dy});
  test::expect_numerical_gradients(fused, inputs_of(c), {at::Tensor(), dy});
  test::expect_numerical_gradients(fused, inputs_of(c), {dh, at::Tensor()});
}

TEST(LayerNorm, LargeMeanKeepsTheVariance) {
  const at::Tensor base = random({4, 256}, at::kFloat);
  const at::Tensor weight = at::zeros({256}).fill_(1), bias = at::zeros({256});
  const at::Tensor y = layer_norm(base + 3000.0, weight, bias, kEps);
  const at::Tensor expected = plain_composite(
      {(base + 3000.0).to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble)})[0];
  EXPECT_LE((y - expected).abs().max().item<double>(), 2e-3);
}

TEST(LayerNorm, BFloat16RoundsOnceAndNormalisesTheRounded) {
  const Tensors in = inputs_of({40, 64}, at::kBFloat16, at::kFloat);
  const Tensors out = fused(in);
  EXPECT_TRUE(at::equal(out[0], (in[0].to(at::kFloat) + in[1].to(at::kFloat)).to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(out[1], plain({out[0], in[2], in[3]})[0]));
  const at::Tensor expected = plain_composite({out[0].to(at::kFloat), in[2], in[3]})[0];
  test::expect_same_arithmetic(expected.to(at::kBFloat16), out[1], "y");
}

TEST(LayerNorm, GradientsHaveTheDtypeOfTheirParameter) {
  Tensors in = inputs_of({8, 16}, at::kBFloat16, at::kFloat);
  in[3] = in[3].to(at::kBFloat16);
  const at::Tensor ones = at::zeros({8, 16}, in[0].options()).fill_(1);
  for (const Tensors& gradients : {Tensors{ones, ones}, Tensors{ones, {}}}) {
    const OpRun run = run_op(fused, in, gradients);
    for (size_t i = 0; i < in.size(); ++i) {
      if (!run.gradients[i].defined()) continue;
      EXPECT_EQ(run.gradients[i].scalar_type(), in[i].scalar_type()) << i;
    }
  }
}

TEST(LayerNorm, SameBitsForAnyNumberOfThreads) {
  const Tensors inputs = inputs_of({1000, 96}, at::kFloat, at::kFloat);
  const Tensors gradients = {random({1000, 96}, at::kFloat), random({1000, 96}, at::kFloat)};
  std::vector<OpRun> runs;
  const int saved = at::get_num_threads();
  for (int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    runs.push_back(run_op(fused, inputs, gradients));
  }
  at::set_num_threads(saved);
  for (size_t r = 1; r < runs.size(); ++r)
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(at::equal(runs[r].gradients[i], runs[0].gradients[i])) << i;
}

TEST(LayerNorm, ZeroRowsGiveZeroParameterGradients) {
  const OpRun run = run_op(fused, inputs_of({0, 8}), {random({0, 8}), random({0, 8})});
  EXPECT_EQ(run.outputs[1].sizes(), at::IntArrayRef({0, 8}));
  for (size_t i = 2; i < 4; ++i)
    EXPECT_TRUE(at::equal(run.gradients[i], at::zeros({8}, at::kDouble)));
}

TEST(LayerNorm, MetaShapesEqualRealShapes) {
  const auto options = at::TensorOptions().device(at::kMeta);
  const auto matrix = [&] { return at::empty({2, 3, 16}, options); };
  const auto vector = [&] { return at::empty({16}, options); };
  Tensors in = {matrix(), matrix(), vector(), vector()};
  for (at::Tensor& t : in) t.set_requires_grad(true);
  const Tensors out = fused(in);
  const at::Tensor y = plain({in[0], in[2], in[3]})[0];
  torch::autograd::backward({out[0], out[1], y}, {matrix(), matrix(), matrix()});
  for (const at::Tensor& t : in) EXPECT_EQ(t.grad().sizes(), t.sizes());
  EXPECT_EQ(out[1].sizes(), in[0].sizes());
}

TEST(LayerNorm, ErrorsNameTheArgument) {
  EXPECT_THROW(layer_norm(random({2, 8}), random({7}), random({8}), kEps), ShapeError);
  EXPECT_THROW(layer_norm(random({2, 8}), random({2, 8}), random({8}), kEps), ShapeError);
  Tensors in = inputs_of({4, 8});
  in[1] = in[1].to(at::kFloat);
  try {
    fused(in);
    FAIL() << "no error";
  } catch (const ShapeError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("add_layer_norm: branch must be Double [4, 8]"));
  }
}

// Widths and row counts that reach every path of the kernels: rows of several steps per team, one
// to four teams, teams with idle threads, rows too wide or too odd for teams.
struct GpuCase {
  Case shape;
  bool offset = false;
};

std::vector<GpuCase> gpu_cases() {
  return {{{7, 1}},       {{7, 5}},      {{300, 33}},         {{64, 64}},     {{70, 72}},
          {{2000, 1152}}, {{900, 1152}}, {{300, 1152}, true}, {{1500, 1024}}, {{1300, 2048}},
          {{700, 4096}},  {{40, 4104}},  {{40, 5001}},        {{2500, 256}},  {{5, 1152}}};
}

/// Error of the gradients of {x}, or {h, branch}, beside the usual one. Only for one
/// column: there x - mean is 0, so that the gradient through the norm, rstd * (d - mean(d)) with
/// d = dy * weight, is 0 and rstd is 1 / sqrt(eps), 1000. The kernel may take product and
/// difference in one rounding (fma), which leaves the rounding of mean(d), up to 2^-24 |d|; rstd
/// makes that visible.
std::vector<double> one_column_error(const Case& c, const at::Tensor& dy, const at::Tensor& weight,
                                     bool addition) {
  if (c.width > 1) return {};
  const at::Tensor d = dy.to(at::kDouble) * weight.to(at::kDouble);
  const double error = std::ldexp(d.abs().max().item<double>(), -24) / std::sqrt(kEps);
  if (!addition) return {error};
  return {error, error};
}

TEST(LayerNormGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const GpuCase& c : gpu_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const at::ScalarType param_type : {at::kFloat, at::kBFloat16}) {
        const Case& s = c.shape;
        const std::string what =
            fmt::format("{}x{}{}, {} with {} parameters", s.rows, s.width,
                        c.offset ? " unaligned" : "", at::toString(type), at::toString(param_type));
        const Tensors inputs = inputs_of(s, type, param_type);
        const Tensors gradients = {random({s.rows, s.width}, type),
                                   random({s.rows, s.width}, type)};
        const at::Tensor &dy = gradients[1], &weight = inputs[2];
        test::expect_gpu_matches_cpu(fused, inputs, gradients, c.offset, "add, " + what,
                                     one_column_error(s, dy, weight, true));
        test::expect_gpu_matches_cpu(plain, without_addition(inputs), {dy}, c.offset, what,
                                     one_column_error(s, dy, weight, false));
      }
    }
  }
}

TEST(LayerNormGpu, UndefinedGradientsAndZeroRows) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor none;
  for (const Case& c : {Case{150, 1152}, Case{60, 77}, Case{0, 64}}) {
    const Tensors inputs = inputs_of(c, at::kBFloat16, at::kFloat);
    const at::Tensor d = random({c.rows, c.width}, at::kBFloat16);
    test::expect_gpu_matches_cpu(fused, inputs, {none, d}, false, "y only");
    test::expect_gpu_matches_cpu(fused, inputs, {d, none}, false, "h_out only");
    test::expect_gpu_matches_cpu(fused, inputs, {d, d}, false, "both");
  }
}

TEST(LayerNormGpu, LargeMeanKeepsTheVariance) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const int64_t width : {1152, 77}) {
    const Tensors in = {random({50, width}, at::kFloat) + 3000.0, random({width}, at::kFloat),
                        random({width}, at::kFloat)};
    Tensors wide, moved;
    for (const at::Tensor& t : in) {
      wide.push_back(t.to(at::kDouble));
      moved.push_back(t.to(at::kCUDA));
    }
    const at::Tensor difference = plain(moved)[0].cpu().to(at::kDouble) - plain_composite(wide)[0];
    EXPECT_LE(difference.abs().max().item<double>(), 1e-2);
  }
}

}  // namespace
}  // namespace longship::ops
