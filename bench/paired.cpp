#include "bench/paired.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/error.h"

namespace longship::bench {
namespace {

constexpr int kInputSets = 2;

/// A pair whose inputs want gradients.
Pair make_pair(const PairedOp& op, const BenchContext& context) {
  Pair pair = op.make(context);
  for (const at::Tensor& t : pair.our_inputs) t.set_requires_grad(true);
  for (const at::Tensor& t : pair.library_inputs) t.set_requires_grad(true);
  return pair;
}

std::vector<at::Tensor> random_like(const std::vector<at::Tensor>& outputs,
                                    const BenchContext& context) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& y : outputs)
    values.push_back(context.randn(y.sizes().vec(), y.scalar_type()));
  return values;
}

OpBench forward_bench(const PairedOp& op, const BenchContext& context) {
  std::vector<std::function<void()>> ours, library;
  OpBench bench;
  for (int i = 0; i < kInputSets; ++i) {
    const Pair pair = make_pair(op, context);
    if (pair.after_first_use) {
      pair.ours();
      pair.after_first_use();
    }
    ours.push_back([call = pair.ours] { call(); });
    library.push_back([call = pair.library] { call(); });
    if (i > 0) continue;
    bench.bytes = op.forward_bytes(pair);
    if (op.forward_flops) bench.flops = op.forward_flops(pair);
    bench.deviation = [pair] { return deviation(pair.ours(), pair.library()); };
  }
  bench.run = in_turn(ours);
  bench.library.emplace_back(op.library, in_turn(library));
  return bench;
}

OpBench backward_bench(const PairedOp& op, const BenchContext& context) {
  std::vector<std::function<void()>> ours, library;
  OpBench bench;
  for (int i = 0; i < kInputSets; ++i) {
    const Pair pair = make_pair(op, context);
    std::vector<at::Tensor> our_outputs = pair.ours();
    const std::vector<at::Tensor> output_gradients = random_like(our_outputs, context);
    if (pair.after_first_use) {
      gradients(our_outputs, pair.our_inputs, output_gradients);
      pair.after_first_use();
      our_outputs = pair.ours();
    }
    const auto our_call = [=] { return gradients(our_outputs, pair.our_inputs, output_gradients); };
    // Made in the first call: what a library refuses must spoil only its own figure.
    const auto library_outputs = std::make_shared<std::vector<at::Tensor>>();
    const auto library_call = [=] {
      if (library_outputs->empty()) *library_outputs = pair.library();
      return gradients(*library_outputs, pair.library_inputs, output_gradients);
    };
    ours.push_back([our_call] { our_call(); });
    library.push_back([library_call] { library_call(); });
    if (i > 0) continue;
    bench.bytes = op.backward_bytes(pair);
    if (op.backward_flops) bench.flops = op.backward_flops(pair);
    bench.deviation = [our_call, library_call] { return deviation(our_call(), library_call()); };
  }
  bench.run = in_turn(ours);
  bench.library.emplace_back(op.library, in_turn(library));
  return bench;
}

using MakeBench = OpBench (*)(const PairedOp&, const BenchContext&);

OpRow make_row(const PairedOp& op, const char* pass, MakeBench make) {
  OpRow row;
  row.name = op.name + pass;
  row.shape = op.shape;
  row.gpu_only = op.gpu_only;
  row.make = [op, make](const BenchContext& context) {
    const at::AutoGradMode with_graph(true);
    OpBench bench = make(op, context);
    bench.fp8 = op.fp8;
    bench.max_deviation = op.max_deviation;
    return bench;
  };
  return row;
}

}  // namespace

void add_paired_rows(std::vector<OpRow>& rows, const PairedOp& op) {
  rows.push_back(make_row(op, " fwd", forward_bench));
  rows.push_back(make_row(op, " bwd", backward_bench));
}

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& output_gradients) {
  return torch::autograd::grad(outputs, inputs, output_gradients, /*retain_graph=*/true,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

double bytes_of(const at::Tensor& tensor) {
  return tensor.defined()
             ? static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size())
             : 0.0;
}

double deviation(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& reference) {
  LS_CHECK(ours.size() == reference.size(), InternalError, "bench: {} results against {}",
           ours.size(), reference.size());
  const at::NoGradGuard no_grad;
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!ours[i].defined() && !reference[i].defined()) continue;
    LS_CHECK(ours[i].defined() && reference[i].defined(), InternalError,
             "bench: result {} exists on one side only", i);
    const at::Tensor expected = reference[i].to(at::kFloat);
    const at::Tensor actual = ours[i].to(at::kFloat).reshape(expected.sizes());
    const double size = at::linalg_vector_norm(expected).item<double>();
    const double error = at::linalg_vector_norm(actual.sub(expected)).item<double>();
    const double relative = size > 0 ? error / size : error;
    // A comparison with NaN is false, so the test is the other way round.
    if (!(relative <= worst)) worst = relative;
    if (relative != relative) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

}  // namespace longship::bench
