// The optimizer: norm and update over the tensors of four layers of the language model, and over
// its token embedding, of which a step touches few rows.
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <memory>

#include "bench/families.h"
#include "bench/pi05_shapes.h"
#include "ops/adamw.h"

namespace longship::bench {
namespace {

constexpr int kLayers = 4;
// One row in so many of the embedding has ever had a gradient.
constexpr int64_t kRowsPerTouched = 64;
constexpr double kNormBytes = 2, kUpdateBytes = 28;  // per element, bf16 weights and gradients

/// Tensors, their gradients, and an optimizer that has its scalars for every step.
struct Problem {
  std::vector<ops::AdamWTensor> tensors;
  std::vector<at::Tensor> grads;
  std::unique_ptr<ops::FusedAdamW> optimizer;
  int64_t num_updates = 0;

  double num_elements() const {
    double n = 0;
    for (const ops::AdamWTensor& t : tensors) n += static_cast<double>(t.master.numel());
    return n;
  }
  void make() {
    ops::AdamWHyper hyper;
    hyper.max_norm = 1.0;
    optimizer = ops::FusedAdamW::create(tensors, hyper);
    optimizer->bind_grads(grads);
  }
  void step() {
    const auto rates = [](int64_t n) { return ops::AdamWRates{n, {{2.5e-5, 1e-10}}}; };
    optimizer->upload_scalars(rates(num_updates), rates(num_updates + 1));
    optimizer->step();
    ++num_updates;
  }
};

ops::AdamWTensor tensor_of(const at::Tensor& master) {
  ops::AdamWTensor t;
  t.master = master;
  t.param = master.to(at::kBFloat16);
  t.exp_avg = at::zeros(master.sizes(), master.options());
  t.exp_avg_sq = at::zeros(master.sizes(), master.options());
  return t;
}

std::shared_ptr<Problem> layers(const BenchContext& context) {
  const int64_t width = context.width(pi05::kPrefixWidth), mlp = context.width(pi05::kPrefixMlp);
  const int64_t qkv = context.width(pi05::kPrefixQkv);
  auto problem = std::make_shared<Problem>();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
             {qkv, width}, {width, width}, {mlp, width}, {mlp, width}, {width, mlp}, {width}}) {
      problem->tensors.push_back(tensor_of(context.randn(sizes, at::kFloat)));
      problem->grads.push_back(context.randn(sizes, at::kBFloat16));
    }
  }
  problem->make();
  return problem;
}

OpBench norm(const BenchContext& context) {
  const auto problem = layers(context);
  OpBench op;
  op.bytes = kNormBytes * problem->num_elements();
  op.run = [problem] { problem->optimizer->norm(); };
  op.library.emplace_back("aten", [problem] { at::_foreach_norm(problem->grads, 2); });
  return op;
}

/// What the community runs: fp32 gradients, the multi-tensor norm, the fused kernel with the clip
/// factor as its gradient scale, and a cast into the bf16 weights. 4 bytes of norm, 28 to 32 of
/// update, 6 of the cast.
std::function<void()> library_step(const Problem& problem, const BenchContext& context) {
  std::vector<at::Tensor> weights, masters, grads, exp_avg, exp_avg_sq, steps;
  for (size_t i = 0; i < problem.tensors.size(); ++i) {
    weights.push_back(problem.tensors[i].param);
    masters.push_back(problem.tensors[i].master);
    grads.push_back(problem.grads[i].to(at::kFloat));
    exp_avg.push_back(problem.tensors[i].exp_avg);
    exp_avg_sq.push_back(problem.tensors[i].exp_avg_sq);
    steps.push_back(at::full({}, 1.0, context.options(at::kFloat)));
  }
  const at::Tensor found_inf = at::zeros({}, context.options(at::kFloat));
  return [=, on_gpu = context.device.is_cuda()] {
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, 2)));
    std::optional<at::Tensor> divisor, inf;  // the CPU kernel has no gradient scale
    if (on_gpu) {
      divisor = norm.add(1e-6).clamp_min(1.0);
      inf = found_inf;
    }
    at::_fused_adamw_(masters, grads, exp_avg, exp_avg_sq, {}, steps, 2.5e-5, 0.9, 0.95, 1e-10,
                      1e-8, false, false, divisor, inf);
    at::_foreach_copy_(weights, masters);
  };
}

OpBench step_of(const std::shared_ptr<Problem>& problem, const BenchContext& context) {
  OpBench op;
  op.bytes = (kNormBytes + kUpdateBytes) * problem->num_elements();
  op.run = [problem] { problem->step(); };
  op.library.emplace_back("aten fused fp32",
                          deferred([problem, context] { return library_step(*problem, context); }));
  return op;
}

OpBench step(const BenchContext& context) {
  return step_of(layers(context), context);
}

/// All trained parameters, in equal tensors: 54 GB, and 13 GB more for the library.
OpBench whole_model_step(const BenchContext& context) {
  constexpr int64_t kTensors = 812;
  const int64_t size = context.rows(pi05::kTrainedParameters) / kTensors;
  auto problem = std::make_shared<Problem>();
  for (int64_t i = 0; i < kTensors; ++i) {
    problem->tensors.push_back(tensor_of(context.randn({size}, at::kFloat, 0.02)));
    problem->grads.push_back(context.randn({size}, at::kBFloat16, 1e-3));
  }
  problem->make();
  return step_of(problem, context);
}

OpBench row_sparse_step(const BenchContext& context) {
  const int64_t rows = context.rows(pi05::kVocabulary);
  const int64_t width = context.width(pi05::kPrefixWidth);
  auto problem = std::make_shared<Problem>();
  ops::AdamWTensor t = tensor_of(context.randn({rows, width}, at::kFloat));
  t.row_flags =
      at::arange(rows, context.options(at::kLong)).remainder(kRowsPerTouched).eq(0).to(at::kByte);
  t.row_grad =
      context.randn({rows, width}, at::kBFloat16).mul(t.row_flags.to(at::kBFloat16).unsqueeze(1));
  problem->tensors.push_back(std::move(t));
  problem->grads.resize(1);
  problem->make();
  const auto touched = static_cast<double>((rows + kRowsPerTouched - 1) / kRowsPerTouched * width);
  OpBench op;
  // The gradient rows are zeroed: 2 more. Every step after the first finds zeros there, which takes
  // the same time.
  op.bytes = (kNormBytes + kUpdateBytes + 2) * touched + 2 * static_cast<double>(rows);
  op.run = [problem] { problem->step(); };
  return op;
}

}  // namespace

std::vector<OpRow> optimizer_rows() {
  return {
      {"adamw norm", "4 layers, 0.44 G bf16", norm},
      {"adamw norm+update", "4 layers, 0.44 G bf16", step},
      {"adamw norm+update", "whole model, 3.35 G bf16", whole_model_step},
      {"adamw norm+update", "embedding 257152x2048, 1/64 of the rows", row_sparse_step},
  };
}

}  // namespace longship::bench
