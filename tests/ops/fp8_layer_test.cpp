// fp8_linear and fp8_gated_mlp on the CPU: wiring, gradients, weight copies, memory.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "fp8_test_util.h"
#include "ops/fp8.h"

namespace longship::ops {
namespace {

constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
constexpr at::ScalarType kE5M2 = at::kFloat8_e5m2;

at::Tensor leaf(const at::Tensor& value) {
  return value.detach().clone().set_requires_grad(true);
}

/// Rows of one block of memory.
std::vector<at::Tensor> adjacent(const std::vector<at::Tensor>& parts) {
  const at::Tensor block = at::cat(parts);
  std::vector<at::Tensor> out;
  int64_t first = 0;
  for (const at::Tensor& part : parts) {
    out.push_back(block.narrow(0, first, part.size(0)).detach().set_requires_grad(true));
    first += part.size(0);
  }
  return out;
}

Fp8LinearSite linear_site(at::TensorList weights, at::ScalarType gradient_format = kE5M2) {
  Fp8LinearSite site;
  site.recipe.gradient_format = gradient_format;
  site.weight.bind(weights);
  site.weight.refresh();
  return site;
}

Fp8GatedMlpSite mlp_site(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& down,
                         at::ScalarType gradient_format = kE5M2) {
  Fp8GatedMlpSite site;
  site.recipe.gradient_format = gradient_format;
  site.gate_up.bind({gate, up});
  site.down.bind(down);
  fp8_refresh({&site.gate_up, &site.down});
  return site;
}

at::Tensor small_integers(std::vector<int64_t> sizes, int64_t limit) {
  return at::randint(-limit, limit + 1, sizes, at::TensorOptions().dtype(at::kFloat));
}

// Values that FP8 holds exactly: the layer must give the plain layer's results, so any error in
// a transpose, slice or scale shows.
TEST(Fp8Linear, ExactWhereFp8IsExact) {
  for (const at::ScalarType format : {kE4M3, kE5M2}) {
    const at::Tensor x0 = small_integers({2, 16, 48}, 2);
    const std::vector<at::Tensor> w0{small_integers({16, 48}, 2), small_integers({32, 48}, 2),
                                     small_integers({16, 48}, 2)};
    const at::Tensor bias0 = small_integers({64}, 3);
    const at::Tensor dy = small_integers({2, 16, 64}, 1);
    const std::vector<at::Tensor> weights = adjacent(w0);
    const at::Tensor x = leaf(x0), bias = leaf(bias0);
    const at::Tensor y = fp8_linear(x, weights, bias, linear_site(weights, format));
    y.backward(dy);
    const at::Tensor ref_x = leaf(x0), ref_bias = leaf(bias0), ref_w = leaf(at::cat(w0));
    const at::Tensor ref_y = at::linear(ref_x, ref_w, ref_bias);
    ref_y.backward(dy);
    EXPECT_TRUE(at::allclose(y, ref_y, 1e-5, 1e-4));
    EXPECT_TRUE(at::allclose(x.grad(), ref_x.grad(), 1e-5, 1e-4));
    EXPECT_TRUE(at::equal(bias.grad(), ref_bias.grad()));
    const at::Tensor dw = at::cat({weights[0].grad(), weights[1].grad(), weights[2].grad()});
    EXPECT_TRUE(at::allclose(dw, ref_w.grad(), 1e-5, 1e-4));
  }
}

TEST(Fp8Linear, WithinFp8BoundsOfThePlainLayer) {
  for (const at::ScalarType format : {kE4M3, kE5M2}) {
    const at::Tensor x0 = random_matrix({96, 144}, at::kFloat);
    const at::Tensor w0 = random_matrix({80, 144}, at::kFloat, 0.02);
    const at::Tensor dy = random_matrix({96, 80}, at::kFloat, 1e-5);
    const at::Tensor x = leaf(x0), w = leaf(w0), ref_x = leaf(x0), ref_w = leaf(w0);
    const at::Tensor y = fp8_linear(x, w, std::nullopt, linear_site(w, format));
    y.backward(dy);
    const at::Tensor ref_y = at::linear(ref_x, ref_w);
    ref_y.backward(dy);
    // One rounding: at most 2^-4 (e4m3) and 2^-3 (e5m2) of a value, a third of the squares of
    // that on average, so 0.026 and 0.053 with log-uniform mantissas; two operands add in squares.
    const double bound = format == kE4M3 ? 0.045 : 0.065;
    EXPECT_LT(relative_error(y, ref_y), 0.045);
    EXPECT_LT(relative_error(x.grad(), ref_x.grad()), bound);
    EXPECT_LT(relative_error(w.grad(), ref_w.grad()), bound);
    EXPECT_GT(cosine(y, ref_y), 0.999);
    EXPECT_GT(cosine(x.grad(), ref_x.grad()), 0.997);
    EXPECT_GT(cosine(w.grad(), ref_w.grad()), 0.997);
  }
}

TEST(Fp8Linear, GradientsAreSlicesOfOneMatrixInTheWeightsDtype) {
  const std::vector<at::Tensor> weights =
      adjacent({random_matrix({16, 32}, at::kBFloat16), random_matrix({48, 32}, at::kBFloat16)});
  const at::Tensor x = leaf(random_matrix({64, 32}, at::kBFloat16));
  const at::Tensor y = fp8_linear(x, weights, std::nullopt, linear_site(weights));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(weights[0].grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(
      static_cast<const char*>(weights[0].grad().const_data_ptr()) + weights[0].grad().nbytes(),
      weights[1].grad().const_data_ptr());
}

TEST(Fp8Linear, BiasInEitherDtype) {
  const at::Tensor w = leaf(random_matrix({48, 32}, at::kBFloat16));
  const Fp8LinearSite site = linear_site(w);
  const at::Tensor dy = random_matrix({16, 48}, at::kBFloat16);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor bias = leaf(random_matrix({48}, type));
    const at::Tensor x = random_matrix({16, 32}, at::kBFloat16);
    const at::Tensor y = fp8_linear(x, w, bias, site);
    y.backward(dy);
    EXPECT_EQ(bias.grad().scalar_type(), type);
    EXPECT_TRUE(at::equal(bias.grad(), dy.to(at::kDouble).sum({0}, false).to(type)));
    const at::Tensor without = fp8_linear(x, w, std::nullopt, site);
    EXPECT_LT(relative_error(y, without.to(at::kFloat) + bias.to(at::kFloat)), 8e-3);
  }
}

TEST(Fp8Linear, OnlyTheGradientsAskedFor) {
  const at::Tensor w = random_matrix({32, 48}, at::kFloat);
  const at::Tensor bias = random_matrix({32}, at::kFloat);
  const Fp8LinearSite site = linear_site(w);
  const at::Tensor x0 = random_matrix({16, 48}, at::kFloat);
  const at::Tensor all_x = leaf(x0), all_w = leaf(w), all_bias = leaf(bias);
  fp8_linear(all_x, all_w, all_bias, site).sum().backward();
  {
    const at::Tensor x = leaf(x0);
    fp8_linear(x, w, bias, site).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), all_x.grad()));
  }
  {
    const at::Tensor only_w = leaf(w);
    fp8_linear(x0, only_w, bias, site).sum().backward();
    EXPECT_TRUE(at::equal(only_w.grad(), all_w.grad()));
  }
  {
    const at::Tensor only_bias = leaf(bias);
    fp8_linear(x0, w, only_bias, site).sum().backward();
    EXPECT_TRUE(at::equal(only_bias.grad(), all_bias.grad()));
  }
  {
    // Through the engine with one input of several.
    const at::Tensor x = leaf(x0), asked = leaf(w);
    const auto got = torch::autograd::grad({fp8_linear(x, asked, bias, site).sum()}, {asked});
    EXPECT_TRUE(at::equal(got[0], all_w.grad()));
    EXPECT_FALSE(x.grad().defined());
  }
  const at::Tensor y = fp8_linear(x0, w, bias, site);
  EXPECT_FALSE(y.requires_grad());
}

TEST(Fp8Linear, InferenceLeavesStatesAlone) {
  const at::Tensor w = leaf(random_matrix({32, 32}, at::kFloat));
  Fp8State states(4);
  Fp8LinearSite site = linear_site(w);
  site.use_delayed_scaling(states);
  states.create(at::kCPU);
  const at::Tensor before = states.tensor().clone();
  {
    const c10::AutoGradMode off(false);
    fp8_linear(random_matrix({16, 32}, at::kFloat), w, std::nullopt, site);
  }
  EXPECT_TRUE(at::equal(states.tensor(), before));
  fp8_linear(random_matrix({16, 32}, at::kFloat), w, std::nullopt, site).sum().backward();
  EXPECT_GT(states.tensor()[site.input][2].item<float>(), 0.0f);
  EXPECT_EQ(states.tensor()[site.gradient][2].item<float>(), 1.0f);
}

TEST(Fp8Linear, DelayedScalingWithEqualStepsIsCurrentScaling) {
  const at::Tensor w = random_matrix({32, 48}, at::kFloat);
  const at::Tensor x0 = random_matrix({16, 48}, at::kFloat);
  const at::Tensor dy = random_matrix({16, 32}, at::kFloat);
  Fp8State states(4);
  const Fp8LinearSite current = linear_site(w);
  Fp8LinearSite delayed = linear_site(w);
  delayed.use_delayed_scaling(states);
  states.create(at::kCPU);
  std::vector<at::Tensor> results[2];
  for (int step = 0; step < 3; ++step) {
    for (const bool is_delayed : {false, true}) {
      const at::Tensor x = leaf(x0), weight = leaf(w);
      const at::Tensor y = fp8_linear(x, weight, std::nullopt, is_delayed ? delayed : current);
      y.backward(dy);
      results[is_delayed] = {y.detach(), x.grad(), weight.grad()};
    }
    states.update();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(results[0][i], results[1][i]));
  }
}

TEST(Fp8Linear, FaultsAreNamed) {
  const at::Tensor w = random_matrix({32, 48}, at::kFloat);
  const at::Tensor x = random_matrix({16, 48}, at::kFloat);
  Fp8LinearSite site;
  EXPECT_THROW(fp8_linear(x, w, std::nullopt, site), InternalError);
  site.weight.bind(w, false);
  EXPECT_THROW(fp8_linear(x, w, std::nullopt, site), InternalError);
  site.weight.refresh();
  EXPECT_NO_THROW(fp8_linear(x, w, std::nullopt, site));
  EXPECT_THROW(fp8_linear(leaf(x), w, std::nullopt, site), ShapeError);  // no transposed copy
  EXPECT_THROW(fp8_linear(random_matrix({15, 48}, at::kFloat), w, std::nullopt, site), ShapeError);
  EXPECT_THROW(fp8_linear(random_matrix({16, 32}, at::kFloat), w, std::nullopt, site), ShapeError);
  EXPECT_THROW(fp8_linear(x.to(at::kDouble), w, std::nullopt, site), ShapeError);
  EXPECT_THROW(fp8_linear(x, {w, w}, std::nullopt, site), ShapeError);
  EXPECT_THROW(site.weight.bind(random_matrix({24, 48}, at::kFloat)), ShapeError);
}

TEST(Fp8Weight, AdjacentWeightsAreNotCopied) {
  const std::vector<at::Tensor> parts =
      adjacent({random_matrix({16, 32}, at::kBFloat16), random_matrix({32, 32}, at::kBFloat16)});
  const at::Tensor view = stacked_rows(parts);
  EXPECT_EQ(view.const_data_ptr(), parts[0].const_data_ptr());
  EXPECT_TRUE(at::equal(view, at::cat(parts).detach()));
  // Wrong order, gaps and strangers are copied.
  for (const std::vector<at::Tensor>& others :
       std::vector<std::vector<at::Tensor>>{{parts[1], parts[0]},
                                            {parts[0], parts[1].narrow(0, 16, 16)},
                                            {parts[0], random_matrix({16, 32}, at::kBFloat16)}}) {
    const at::Tensor copy = stacked_rows(others);
    EXPECT_NE(copy.const_data_ptr(), others[0].const_data_ptr());
    EXPECT_TRUE(at::equal(copy.detach(), at::cat(others).detach()));
  }
}

TEST(Fp8Weight, CopiesDoNotDependOnAdjacencyAndFollowTheWeights) {
  const at::Tensor a = random_matrix({16, 48}, at::kFloat), b = random_matrix({32, 48}, at::kFloat);
  Fp8Weight together, apart;
  const std::vector<at::Tensor> rows = adjacent({a, b});
  together.bind(rows);
  apart.bind({a, b});
  for (int step = 0; step < 2; ++step) {
    fp8_refresh({&together, &apart});
    const Fp8Matrix expected = fp8_quantize(at::cat({a, b}), kE4M3, {});
    for (const Fp8Weight* weight : {&together, &apart}) {
      EXPECT_TRUE(same_codes(weight->q, expected.q));
      EXPECT_TRUE(same_codes(weight->q_t, expected.q_t));
      EXPECT_TRUE(at::equal(weight->inv_scale(), expected.inv_scale));
    }
    EXPECT_EQ(together.scale[1].item<float>(), at::cat({a, b}).abs().max().item<float>());
    a.mul_(1.5);
    rows[0].detach().mul_(1.5);
  }
}

at::Tensor plain_mlp(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                     const at::Tensor& down) {
  return at::linear(at::gelu(at::linear(x, gate), "tanh") * at::linear(x, up), down);
}

struct MlpCase {
  std::vector<at::Tensor> arguments;  // x, gate, up, down
  at::Tensor dy;
};

MlpCase mlp_case(at::ScalarType type = at::kFloat) {
  return {{random_matrix({2, 48, 64}, type), random_matrix({80, 64}, type, 0.1),
           random_matrix({80, 64}, type, 0.1), random_matrix({32, 80}, type, 0.1)},
          random_matrix({2, 48, 32}, type, 1e-4)};
}

TEST(Fp8GatedMlp, WithinFp8BoundsOfThePlainMlp) {
  for (const at::ScalarType format : {kE4M3, kE5M2}) {
    const MlpCase c = mlp_case();
    std::vector<at::Tensor> ours, theirs;
    for (const at::Tensor& t : c.arguments) {
      ours.push_back(leaf(t));
      theirs.push_back(leaf(t));
    }
    const at::Tensor y = fp8_gated_mlp(ours[0], ours[1], ours[2], ours[3],
                                       mlp_site(ours[1], ours[2], ours[3], format));
    const at::Tensor ref = plain_mlp(theirs[0], theirs[1], theirs[2], theirs[3]);
    EXPECT_EQ(y.sizes(), ref.sizes());
    y.backward(c.dy);
    ref.backward(c.dy);
    EXPECT_LT(relative_error(y, ref), 0.08);
    EXPECT_GT(cosine(y, ref), 0.995);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LT(relative_error(ours[i].grad(), theirs[i].grad()), 0.13) << "argument " << i;
      EXPECT_GT(cosine(ours[i].grad(), theirs[i].grad()), 0.99) << "argument " << i;
    }
  }
}

// The same steps written out with the operators and plain products.
TEST(Fp8GatedMlp, IsTheChainOfItsOperators) {
  const MlpCase c = mlp_case();
  std::vector<at::Tensor> t;
  for (const at::Tensor& a : c.arguments) t.push_back(leaf(a));
  fp8_gated_mlp(t[0], t[1], t[2], t[3], mlp_site(t[1], t[2], t[3])).backward(c.dy);
  const at::Tensor x = c.arguments[0].reshape({96, 64}), dy = c.dy.reshape({96, 32});
  const auto quantised = [](const at::Tensor& v, at::ScalarType format) {
    const Fp8Matrix m = fp8_quantize(v.contiguous(), format, {});
    return values(m.q, m.inv_scale);
  };
  const at::Tensor x8 = quantised(x, kE4M3);
  const at::Tensor up8 = quantised(at::cat({c.arguments[1], c.arguments[2]}), kE4M3);
  const at::Tensor down8 = quantised(c.arguments[3], kE4M3);
  const at::Tensor gate_up = leaf(x8.matmul(up8.t()));
  // As the oracle: in fp64, rounded once; fp32 may turn a tie of the following FP8 rounding.
  const at::Tensor both = gate_up.to(at::kDouble);
  const at::Tensor act =
      (at::gelu(both.narrow(1, 0, 80), "tanh") * both.narrow(1, 80, 80)).to(at::kFloat);
  const at::Tensor dy8 = quantised(dy, kE5M2);
  act.backward(dy8.matmul(down8));
  const at::Tensor dgu8 = quantised(gate_up.grad(), kE5M2);
  EXPECT_LT(relative_error(t[3].grad(), dy8.t().matmul(quantised(act.detach(), kE4M3))), 1e-5);
  // A tie that falls the other way moves one of 15,360 codes.
  EXPECT_LT(relative_error(t[0].grad(), dgu8.matmul(up8).reshape({2, 48, 64})), 3e-3);
  EXPECT_LT(relative_error(at::cat({t[1].grad(), t[2].grad()}), dgu8.t().matmul(x8)), 3e-3);
}

TEST(Fp8GatedMlp, OnlyTheGradientsAskedFor) {
  const MlpCase c = mlp_case();
  std::vector<at::Tensor> all;
  for (const at::Tensor& t : c.arguments) all.push_back(leaf(t));
  const Fp8GatedMlpSite site = mlp_site(all[1], all[2], all[3]);
  fp8_gated_mlp(all[0], all[1], all[2], all[3], site).backward(c.dy);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<at::Tensor> t = c.arguments;
    t[i] = leaf(t[i]);
    fp8_gated_mlp(t[0], t[1], t[2], t[3], site).backward(c.dy);
    EXPECT_TRUE(at::equal(t[i].grad(), all[i].grad())) << "argument " << i;
  }
}

TEST(Fp8GatedMlp, DelayedScalingStepsAndResumesBitForBit) {
  std::vector<MlpCase> steps;
  for (int i = 0; i < 6; ++i) steps.push_back(mlp_case(at::kBFloat16));
  const MlpCase weights = mlp_case(at::kBFloat16);
  const auto run = [&](Fp8State& states, const Fp8GatedMlpSite& site, size_t begin, size_t end) {
    std::vector<at::Tensor> out;
    for (size_t i = begin; i < end; ++i) {
      std::vector<at::Tensor> t{leaf(steps[i].arguments[0])};
      for (int k = 1; k < 4; ++k) t.push_back(leaf(weights.arguments[k]));
      fp8_gated_mlp(t[0], t[1], t[2], t[3], site).backward(steps[i].dy);
      for (const at::Tensor& a : t) out.push_back(a.grad());
      states.update();
    }
    return out;
  };
  Fp8State states(3), resumed(3);
  Fp8GatedMlpSite site = mlp_site(weights.arguments[1], weights.arguments[2], weights.arguments[3]);
  Fp8GatedMlpSite resumed_site = site;
  site.use_delayed_scaling(states);
  resumed_site.use_delayed_scaling(resumed);
  states.create(at::kCPU);
  resumed.create(at::kCPU);
  EXPECT_EQ(states.size(), 4);
  run(states, site, 0, 3);
  resumed.load(states.tensor().clone());
  const auto expected = run(states, site, 3, 6);
  const auto got = run(resumed, resumed_site, 3, 6);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], expected[i]));
}

TEST(Fp8Layers, FullSizeShapesOnTheMetaDevice) {
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kBFloat16);
  const at::Tensor x = at::empty({32, 572, 2048}, meta).set_requires_grad(true);
  std::vector<at::Tensor> w{at::empty({16384, 2048}, meta), at::empty({16384, 2048}, meta),
                            at::empty({2048, 16384}, meta)};
  for (at::Tensor& t : w) t.set_requires_grad(true);
  Fp8State states;
  Fp8GatedMlpSite site = mlp_site(w[0], w[1], w[2]);
  site.use_delayed_scaling(states);
  states.create(at::kMeta);
  const at::Tensor y = fp8_gated_mlp(x, w[0], w[1], w[2], site);
  EXPECT_EQ(y.sizes(), x.sizes());
  y.backward(at::empty({32, 572, 2048}, meta));
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  for (const at::Tensor& t : w) EXPECT_EQ(t.grad().sizes(), t.sizes());
  states.update();
}

// --- Memory ---

/// Bytes that live on the CPU more than before, of this thread.
struct LiveBytes : c10::MemoryReportingInfoBase {
  int64_t bytes = 0;

  void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, at::Device /*device*/) override {
    bytes += alloc_size;
  }
  bool memoryProfilingEnabled() const override { return true; }
};

/// Bytes that the graph keeps after the forward pass of `layer` on a fresh input, whose own handle
/// is dropped, without the output.
template <class Layer>
int64_t saved_bytes(const at::Tensor& input, const Layer& layer) {
  const auto live = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  at::Tensor x = input.mul(1.0);
  const at::Tensor y = layer(x);
  x.reset();
  return live->bytes - static_cast<int64_t>(y.nbytes());
}

constexpr int64_t kSlack = 1024;  // scales

TEST(Fp8Layers, LinearKeepsHalfOfTheBytes) {
  const at::Tensor x = leaf(random_matrix({256, 128}, at::kBFloat16));
  const at::Tensor w = leaf(random_matrix({64, 128}, at::kBFloat16));
  const Fp8LinearSite site = linear_site(w);
  const int64_t fp8 =
      saved_bytes(x, [&](const at::Tensor& t) { return fp8_linear(t, w, std::nullopt, site); });
  const int64_t bf16 = saved_bytes(x, [&](const at::Tensor& t) { return at::linear(t, w); });
  EXPECT_EQ(bf16, 256 * 128 * 2);
  EXPECT_GE(fp8, 256 * 128);
  EXPECT_LT(fp8, 256 * 128 + kSlack);
}

TEST(Fp8Layers, GatedMlpKeepsFewerBytes) {
  constexpr int64_t kRows = 128, kWidth = 64, kHidden = 256;
  const at::Tensor x = leaf(random_matrix({kRows, kWidth}, at::kBFloat16));
  const at::Tensor gate = leaf(random_matrix({kHidden, kWidth}, at::kBFloat16));
  const at::Tensor up = leaf(random_matrix({kHidden, kWidth}, at::kBFloat16));
  const at::Tensor down = leaf(random_matrix({kWidth, kHidden}, at::kBFloat16));
  const Fp8GatedMlpSite site = mlp_site(gate, up, down);
  const int64_t fp8 =
      saved_bytes(x, [&](const at::Tensor& t) { return fp8_gated_mlp(t, gate, up, down, site); });
  const int64_t bf16 =
      saved_bytes(x, [&](const at::Tensor& t) { return plain_mlp(t, gate, up, down); });
  const int64_t fused_bf16 = kRows * (2 * kWidth + 4 * kHidden + 2 * kHidden);
  EXPECT_GE(fp8, kRows * (kWidth + 4 * kHidden + kHidden));
  EXPECT_LT(fp8, kRows * (kWidth + 4 * kHidden + kHidden) + kSlack);
  EXPECT_LT(fp8, fused_bf16);
  EXPECT_LT(fp8, bf16);
}

TEST(Fp8Layers, WithoutGradientsNothingIsKept) {
  const at::Tensor x = random_matrix({64, 32}, at::kFloat);
  const at::Tensor w = leaf(random_matrix({32, 32}, at::kFloat));
  const Fp8LinearSite site = linear_site(w);
  const c10::AutoGradMode off(false);
  EXPECT_EQ(
      saved_bytes(x, [&](const at::Tensor& t) { return fp8_linear(t, w, std::nullopt, site); }), 0);
}

TEST(Fp8Layers, SecondDerivativesAreRefused) {
  const at::Tensor x = leaf(random_matrix({16, 32}, at::kFloat));
  const at::Tensor w = leaf(random_matrix({32, 32}, at::kFloat));
  const at::Tensor y = fp8_linear(x, w, std::nullopt, linear_site(w));
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, true), InternalError);
}

}  // namespace
}  // namespace longship::ops
