#pragma once
// The feed-forward block of the Llama and Qwen families.

#include <ATen/core/Tensor.h>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/module.h"

namespace longship::nn {

/// silu(gate) * up, the element-wise half of the block. gate_up [..., 2F]: gate columns first.
/// Returns [..., F]. Fused: one pass over memory, rounded once; else silu is rounded to the dtype
/// of gate before the product.
at::Tensor swiglu(const at::Tensor& gate_up, bool fused);

/// down( silu(gate(x)) * up(x) ), no biases. Source: transformers Qwen3MLP.
class SwiGluMlp : public Module {
 public:
  SwiGluMlp(int64_t width, int64_t hidden);
  /// x [..., width] -> [..., width]. fused.stacked: one product for gate and up;
  /// fused.activations: one for both, and swiglu in one pass.
  at::Tensor forward(const at::Tensor& x, const Fused& fused) const;

  Linear gate_proj, up_proj, down_proj;
  const Fp8Linear* fp8_gate_up = nullptr;  // gate and up stacked; null: the model's dtype
  const Fp8Linear* fp8_down = nullptr;
};

}  // namespace longship::nn
