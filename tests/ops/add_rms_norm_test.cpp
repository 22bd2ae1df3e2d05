// add_rms_norm and add_gate. Inputs in order: h, branch, gate, scale, shift; outputs: h_out, y.
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "norm_support.h"
#include "ops/rms_norm.h"
#include "runtime/device.h"

namespace longship::ops {
namespace {

using test::Op;
using test::OpRun;
using test::optional;
using test::random;
using test::run_op;
using test::Tensors;

constexpr double kEps = 1e-6;

Tensors fused(const Tensors& in) {
  auto [h_out, y] = add_rms_norm(in[0], in[1], optional(in[2]), in[3], optional(in[4]), kEps);
  return {h_out, y};
}

at::Tensor grouped(const at::Tensor& param) {
  return param.dim() == 1 ? param.view({1, 1, -1}) : param.unsqueeze(1);
}

/// The definition, written with the tensor library.
Tensors composite(const Tensors& in) {
  int64_t groups = 1;
  for (size_t i = 2; i < 5; ++i)
    if (in[i].defined() && in[i].dim() == 2) groups = std::max(groups, in[i].size(0));
  const int64_t width = in[0].size(-1);
  const at::Tensor h = in[0].reshape({groups, -1, width});
  at::Tensor branch = in[1].reshape({groups, -1, width});
  if (in[2].defined()) branch = branch * grouped(in[2]);
  const at::Tensor h_out = h + branch;
  at::Tensor y = h_out * at::rsqrt(h_out.pow(2).mean({-1}, true) + kEps) * (1 + grouped(in[3]));
  if (in[4].defined()) y = y + grouped(in[4]);
  return {h_out.reshape(in[0].sizes()), y.reshape(in[0].sizes())};
}

struct Case {
  int64_t rows, groups, width;
  bool gate, shift;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.rows << "x" << c.width << ", " << c.groups << " groups" << (c.gate ? ", gate" : "")
       << (c.shift ? ", shift" : "");
}

Tensors inputs_of(const Case& c, at::ScalarType type = at::kDouble,
                  at::ScalarType param_type = at::kDouble) {
  const auto param = [&](bool present) {
    return present ? random({c.groups, c.width}, param_type) : at::Tensor();
  };
  return {random({c.rows, c.width}, type), random({c.rows, c.width}, type), param(c.gate),
          param(true), param(c.shift)};
}

class AddRmsNormCases : public ::testing::TestWithParam<Case> {};

TEST_P(AddRmsNormCases, MatchesDefinitionAndItsGradients) {
  const Case c = GetParam();
  const Tensors inputs = inputs_of(c);
  const at::Tensor dh = random({c.rows, c.width}), dy = random({c.rows, c.width});
  for (const Tensors& gradients : {Tensors{dh, dy}, Tensors{dh, {}}, Tensors{{}, dy}}) {
    const OpRun ours = run_op(fused, inputs, gradients);
    OpRun theirs = run_op(composite, inputs, gradients);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LE((ours.outputs[i] - theirs.outputs[i]).abs().max().item<double>(), 1e-10);
    }
    test::expect_close_gradients(theirs, ours, 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, AddRmsNormCases,
                         ::testing::Values(Case{1, 1, 2, false, false}, Case{7, 1, 5, false, false},
                                           Case{130, 1, 33, false, true},
                                           Case{12, 4, 20, true, true},
                                           Case{200, 2, 65, true, true},
                                           Case{6, 6, 17, true, false}, Case{65, 1, 48, true, true},
                                           Case{150, 3, 8, false, true}));

TEST(AddRmsNorm, NumericalGradientInFloat64) {
  const Case c = {6, 2, 5, true, true};
  const at::Tensor dh = random({6, 5}), dy = random({6, 5});
  test::expect_numerical_gradients(fused, inputs_of(c), {dh, dy});
  test::expect_numerical_gradients(fused, inputs_of({6, 1, 5, false, false}), {dh, dy});
  test::expect_numerical_gradients(fused, inputs_of(c), {at::Tensor(), dy});
  test::expect_numerical_gradients(fused, inputs_of(c), {dh, at::Tensor()});
}

/// Llama and Qwen: the weight is the whole factor.
Tensors whole_factor(const Tensors& in) {
  auto [h_out, y] =
      add_rms_norm(in[0], in[1], optional(in[2]), in[3], optional(in[4]), kEps, /*offset=*/0.0);
  return {h_out, y};
}

TEST(AddRmsNorm, OffsetZeroTakesTheWeightAsTheWholeFactor) {
  const Op definition = [](const Tensors& in) {
    return composite({in[0], in[1], in[2], in[3] - 1.0, in[4]});
  };
  const Tensors inputs = inputs_of({70, 1, 12, false, false});
  const Tensors gradients = {random({70, 12}), random({70, 12})};
  test::expect_close_gradients(run_op(definition, inputs, gradients),
                               run_op(whole_factor, inputs, gradients), 1e-9);
  test::expect_numerical_gradients(whole_factor, inputs_of({6, 2, 5, true, true}),
                                   {random({6, 5}), random({6, 5})});
}

TEST(AddRmsNorm, OneRowOfAParameterServesAllGroups) {
  Tensors inputs = inputs_of({12, 4, 6, true, true});
  inputs[3] = random({6});
  inputs[4] = random({1, 6});
  const Tensors gradients = {random({12, 6}), random({12, 6})};
  test::expect_close_gradients(run_op(composite, inputs, gradients),
                               run_op(fused, inputs, gradients), 1e-10);
}

TEST(AddRmsNorm, StridedParametersOfThreeDimensionalInput) {
  const Op strided = [](const Tensors& in) {
    const auto part = [&](int64_t i) { return in[2].narrow(1, i * 8, 8); };
    return fused({in[0], in[1], part(2), part(0), part(1)});
  };
  const Op packed = [](const Tensors& in) {
    const auto part = [&](int64_t i) { return in[2].narrow(1, i * 8, 8).contiguous(); };
    return fused({in[0], in[1], part(2), part(0), part(1)});
  };
  const Tensors inputs = {random({3, 5, 8}), random({3, 5, 8}), random({3, 24})};
  const Tensors gradients = {random({3, 5, 8}), random({3, 5, 8})};
  test::expect_close_gradients(run_op(packed, inputs, gradients),
                               run_op(strided, inputs, gradients), 0);
}

TEST(AddRmsNorm, BFloat16RoundsOnceAndNormalisesTheRounded) {
  const Tensors in = inputs_of({40, 4, 64, true, true}, at::kBFloat16, at::kFloat);
  const Tensors out = fused(in);
  const at::Tensor gate = in[2].unsqueeze(1).expand({4, 10, 64}).reshape({40, 64});
  const at::Tensor sum = in[0].to(at::kFloat) + in[1].to(at::kFloat) * gate;
  EXPECT_TRUE(at::equal(out[0], sum.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(out[1], rms_norm(out[0], in[3], in[4], kEps)));
}

TEST(AddRmsNorm, GradientsHaveTheDtypeOfTheirParameter) {
  Tensors in = inputs_of({8, 2, 16, true, true}, at::kBFloat16, at::kFloat);
  in[2] = in[2].to(at::kBFloat16);
  in[4] = in[4].to(at::kBFloat16);
  const at::Tensor ones = at::zeros({8, 16}, in[0].options()).fill_(1);
  const OpRun run = run_op(fused, in, {ones, ones});
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(run.gradients[i].scalar_type(), in[i].scalar_type()) << i;
    EXPECT_TRUE(run.gradients[i].is_contiguous()) << i;
  }
}

TEST(AddRmsNorm, WithoutGradientsNothingIsSaved) {
  const Tensors out = fused(inputs_of({4, 1, 8, true, true}));
  EXPECT_FALSE(out[0].requires_grad());
  EXPECT_FALSE(out[1].requires_grad());
}

TEST(AddRmsNorm, ZeroRowsGiveZeroParameterGradients) {
  const OpRun run =
      run_op(fused, inputs_of({0, 2, 8, true, true}), {random({0, 8}), random({0, 8})});
  EXPECT_EQ(run.outputs[1].sizes(), at::IntArrayRef({0, 8}));
  for (size_t i = 2; i < 5; ++i)
    EXPECT_TRUE(at::equal(run.gradients[i], at::zeros({2, 8}, at::kDouble)));
}

TEST(AddRmsNorm, MetaShapesEqualRealShapes) {
  const auto options = at::TensorOptions().device(at::kMeta);
  const Tensors in = {at::empty({2, 3, 16}, options), at::empty({2, 3, 16}, options),
                      at::empty({2, 16}, options), at::empty({2, 16}, options), at::Tensor()};
  Tensors leaves;
  for (const at::Tensor& t : in) leaves.push_back(t.defined() ? t.set_requires_grad(true) : t);
  const Tensors out = fused(leaves);
  torch::autograd::backward({out[0], out[1]},
                            {at::empty({2, 3, 16}, options), at::empty({2, 3, 16}, options)});
  for (const at::Tensor& t : leaves) {
    if (t.defined()) {
      EXPECT_EQ(t.grad().sizes(), t.sizes());
    }
  }
  EXPECT_EQ(out[0].sizes(), in[0].sizes());
  EXPECT_EQ(add_gate(in[0].detach(), in[1].detach(), in[2].detach()).sizes(), in[0].sizes());
}

TEST(AddRmsNorm, ErrorsNameTheArgument) {
  const auto message = [](const Tensors& in) -> std::string {
    try {
      fused(in);
    } catch (const ShapeError& e) {
      return e.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  Tensors in = inputs_of({4, 2, 8, true, true});
  in[1] = random({4, 7});
  EXPECT_THAT(message(in), HasSubstr("branch must be Double [4, 8], got Double [4, 7]"));
  in = inputs_of({4, 2, 8, true, true});
  in[2] = random({4, 8});
  EXPECT_THAT(message(in), HasSubstr("scale [2, 8] must have 1 or 4 rows"));
  EXPECT_THAT(message(inputs_of({5, 2, 8, false, false})), HasSubstr("5 rows of x"));
}

Tensors gated(const Tensors& in) {
  return {add_gate(in[0], in[1], optional(in[2]))};
}

TEST(AddGate, MatchesDefinitionAndItsGradients) {
  const Op definition = [](const Tensors& in) {
    Tensors all = in;
    all.resize(5);
    all[3] = at::zeros({in[0].size(1)}, in[0].options());
    return Tensors{composite(all)[0]};
  };
  for (const Case& c :
       {Case{130, 1, 7, true, false}, Case{12, 4, 5, true, false}, Case{9, 1, 4, false, false}}) {
    Tensors inputs = inputs_of(c);
    inputs.resize(3);
    const Tensors gradients = {random({c.rows, c.width})};
    const OpRun ours = run_op(gated, inputs, gradients);
    const OpRun theirs = run_op(definition, inputs, gradients);
    EXPECT_LE((ours.outputs[0] - theirs.outputs[0]).abs().max().item<double>(), 1e-12);
    test::expect_close_gradients(theirs, ours, 1e-12);
    test::expect_numerical_gradients(gated, inputs, gradients);
  }
}

// Widths and row counts that reach every path of the kernels: rows of several steps per team, one
// to four teams, teams with idle threads, rows too wide or too odd for teams.
struct GpuCase {
  Case shape;
  bool offset = false;
};

std::vector<GpuCase> gpu_cases() {
  return {
      {{7, 1, 1, false, false}},
      {{7, 1, 5, true, true}},
      {{300, 3, 33, true, true}},
      {{64, 2, 64, true, true}},
      {{70, 1, 72, false, true}},
      {{1000, 4, 1000, true, true}},
      {{1600, 32, 1024, true, true}},
      {{250, 5, 1024, true, true}, true},
      {{400, 400, 256, true, true}},
      {{3000, 1, 2048, false, false}},
      {{1300, 1, 2048, false, false}, true},
      {{700, 1, 4096, true, true}},
      {{40, 1, 4104, false, false}},
      {{40, 2, 5001, true, true}},
      {{2500, 1, 256, false, false}},
      {{5, 1, 2048, false, true}},
  };
}

std::string text(const GpuCase& c, at::ScalarType type, at::ScalarType param_type) {
  std::ostringstream out;
  PrintTo(c.shape, &out);
  out << (c.offset ? ", unaligned" : "") << ", " << at::toString(type) << " with "
      << at::toString(param_type) << " parameters";
  return out.str();
}

TEST(AddRmsNormGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const GpuCase& c : gpu_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const at::ScalarType param_type : {at::kFloat, at::kBFloat16}) {
        const Case& s = c.shape;
        const Tensors inputs = inputs_of(s, type, param_type);
        const Tensors gradients = {random({s.rows, s.width}, type),
                                   random({s.rows, s.width}, type)};
        test::expect_gpu_matches_cpu(fused, inputs, gradients, c.offset, text(c, type, param_type));
        test::expect_gpu_matches_cpu(whole_factor, inputs, gradients, c.offset,
                                     text(c, type, param_type) + ", whole factor");
      }
    }
  }
}

TEST(AddRmsNormGpu, StridedModulationAndUndefinedGradients) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const at::Tensor none;
  for (const int64_t width : {1024, 1001}) {
    const Op op = [width](const Tensors& in) {
      const auto part = [&](int64_t i) { return in[2].narrow(1, i * width, width); };
      return fused({in[0], in[1], part(2), part(0), part(1)});
    };
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors inputs = {random({8, 50, width}, type), random({8, 50, width}, type),
                              random({8, 3 * width}, at::kFloat)};
      const at::Tensor dh = random({8, 50, width}, type), dy = random({8, 50, width}, type);
      const std::string what = fmt::format("width {} {}", width, at::toString(type));
      test::expect_gpu_matches_cpu(op, inputs, {dh, dy}, false, what);
      test::expect_gpu_matches_cpu(op, inputs, {none, dy}, false, what + ", y only");
      test::expect_gpu_matches_cpu(op, inputs, {dh, none}, false, what + ", h_out only");
    }
  }
}

TEST(AddRmsNormGpu, SharedScaleWithGateOfGroups) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const int64_t width : {512, 77}) {
    Tensors inputs = inputs_of({120, 6, width, true, false}, at::kBFloat16, at::kFloat);
    inputs[3] = random({width}, at::kBFloat16);
    const Tensors gradients = {random({120, width}, at::kBFloat16),
                               random({120, width}, at::kBFloat16)};
    test::expect_gpu_matches_cpu(fused, inputs, gradients, false, "shared scale");
  }
}

TEST(AddRmsNormGpu, ZeroRows) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  const Tensors inputs = inputs_of({0, 2, 64, true, true}, at::kBFloat16, at::kFloat);
  const at::Tensor none = random({0, 64}, at::kBFloat16);
  test::expect_gpu_matches_cpu(fused, inputs, {none, none}, false, "zero rows");
}

TEST(AddGateGpu, MatchesCpu) {
  if (!runtime::cuda_available()) GTEST_SKIP() << "no CUDA device on this machine";
  for (const GpuCase& c : gpu_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Case& s = c.shape;
      Tensors inputs = inputs_of(s, type, at::kFloat);
      inputs.resize(3);
      test::expect_gpu_matches_cpu(gated, inputs, {random({s.rows, s.width}, type)}, c.offset,
                                   "add_gate " + text(c, type, at::kFloat));
    }
  }
}

}  // namespace
}  // namespace longship::ops
