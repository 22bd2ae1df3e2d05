#pragma once
// Rows for a differentiable operator and a library composite of the same function.

#include "bench/ops_bench.h"

namespace longship::bench {

/// One input set. Both functions return the same outputs; the inputs are those whose gradients are
/// wanted, in the same order (a library may take 1 + w where we take w).
struct Pair {
  std::vector<at::Tensor> our_inputs, library_inputs;
  std::function<std::vector<at::Tensor>()> ours, library;
  std::function<void()> after_first_use;  // e.g. the first scales of FP8; may be empty
};

struct PairedOp {
  std::string name, shape;
  std::function<Pair(const BenchContext&)> make;  // fresh inputs in every call
  /// Bytes moved at least, for the pair's inputs.
  std::function<double(const Pair&)> forward_bytes, backward_bytes;
  std::function<double(const Pair&)> forward_flops, backward_flops;  // empty: bound by memory
  std::string library = "aten";
  double max_deviation = 0.03;
  bool fp8 = false;
  bool gpu_only = false;
};

/// "NAME fwd" (with what a later backward needs, as in training) and "NAME bwd". Each alternates
/// between two input sets.
void add_paired_rows(std::vector<OpRow>& rows, const PairedOp& op);

/// Gradients for `inputs`, undefined where there is none. The graph is kept.
std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& output_gradients);

/// Bytes of a tensor's elements; 0 for an undefined one.
double bytes_of(const at::Tensor& tensor);

/// |ours - reference| / |reference| over all elements of all tensors, in fp32; the largest over the
/// tensors. Undefined pairs count as equal.
double deviation(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& reference);

}  // namespace longship::bench
