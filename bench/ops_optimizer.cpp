// The optimizer's step over all trained parameters: norm, clip, AdamW with fp32 masters.
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include "bench/families.h"
#include "bench/pi05_shapes.h"
#include "ops/adamw.h"

namespace longship::bench {
namespace {

constexpr int64_t kTensors = 812;
constexpr double kLr = 2.5e-5;

struct State {
  std::vector<at::Tensor> masters, weights, gradients, exp_avg, exp_avg_sq;
};

State make_state(const BenchContext& context) {
  const int64_t size = context.rows(pi05::kTrainedParameters) / kTensors;
  State state;
  for (int64_t i = 0; i < kTensors; ++i) {
    state.masters.push_back(context.randn({size}, at::kFloat, 0.02));
    state.weights.push_back(state.masters.back().to(at::kBFloat16));
    state.gradients.push_back(context.randn({size}, at::kBFloat16, 1e-3));
    state.exp_avg.push_back(at::zeros_like(state.masters.back()));
    state.exp_avg_sq.push_back(at::zeros_like(state.masters.back()));
  }
  return state;
}

std::function<void()> our_step(const State& state) {
  std::vector<ops::AdamWTensor> tensors;
  for (size_t i = 0; i < state.masters.size(); ++i) {
    ops::AdamWTensor& t = tensors.emplace_back();
    t.master = state.masters[i];
    t.param = state.weights[i];
    t.exp_avg = state.exp_avg[i];
    t.exp_avg_sq = state.exp_avg_sq[i];
  }
  ops::AdamWHyper hyper;
  hyper.max_norm = 1.0;
  const std::shared_ptr<ops::FusedAdamW> optimizer =
      ops::FusedAdamW::create(std::move(tensors), hyper);
  optimizer->bind_grads(state.gradients);
  return [optimizer, num_updates = int64_t{0}]() mutable {
    const auto rates = [](int64_t n) {
      ops::AdamWRates r;
      r.num_updates = n;
      r.groups = {{kLr, 0.01}};
      return r;
    };
    optimizer->upload_scalars(rates(num_updates), rates(num_updates + 1));
    optimizer->step();
    ++num_updates;
  };
}

/// What the community runs: fp32 gradients, multi-tensor norm, the fused kernel with the clip
/// factor as its gradient scale, and a cast into the bf16 weights.
std::function<void()> library_step(const State& state, const BenchContext& context) {
  std::vector<at::Tensor> gradients, steps;
  for (const at::Tensor& g : state.gradients) {
    gradients.push_back(g.to(at::kFloat));
    steps.push_back(at::zeros({}, context.options(at::kFloat)));
  }
  const at::Tensor no_inf = at::zeros({}, context.options(at::kFloat));
  const bool clip = context.device.is_cuda();
  return [=] {
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)));
    // The kernel divides gradients by grad_scale.
    const at::Tensor scale = norm.add(1e-6).clamp_min(1.0);
    at::_fused_adamw_(state.masters, gradients, state.exp_avg, state.exp_avg_sq, {}, steps, kLr,
                      0.9, 0.95, 0.01, 1e-8, false, false,
                      clip ? std::optional(scale) : std::nullopt,
                      clip ? std::optional(no_inf) : std::nullopt);
    at::_foreach_copy_(state.weights, state.masters);
  };
}

}  // namespace

std::vector<OpRow> optimizer_rows() {
  return {{"adamw step", "3.35 G parameters", [](const BenchContext& context) {
             const State state = make_state(context);
             const auto parameters = static_cast<double>(kTensors * state.masters[0].numel());
             OpBench op;
             // Norm: the gradient. Update: gradient, master, two moments; writes three and the
             // weight.
             op.bytes = parameters * (2 + 2 + 3 * 4 + 3 * 4 + 2);
             op.run = our_step(state);
             op.library.emplace_back("aten fused fp32", library_step(state, context));
             return op;
           }}};
}

}  // namespace longship::bench
