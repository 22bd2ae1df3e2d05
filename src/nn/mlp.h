#pragma once
// Feed-forward blocks.

#include <ATen/core/Tensor.h>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/module.h"

namespace longship::nn {

/// gelu_tanh(gate) * up, the element-wise half of a gated MLP. gate_up [..., 2F]: gate columns
/// first. Returns [..., F].
at::Tensor geglu(const at::Tensor& gate_up, bool fused);

/// Gemma's MLP: down( gelu_tanh(gate(x)) * up(x) ), no biases.
class GatedMlp : public Module {
 public:
  GatedMlp(int64_t width, int64_t hidden);
  /// x [..., width] -> [..., width].
  at::Tensor forward(const at::Tensor& x, const Fused& fused) const;

  Linear gate_proj, up_proj, down_proj;
  const Fp8GatedMlp* fp8 = nullptr;  // null: the model's dtype
};

/// SigLIP's MLP: fc2( gelu_tanh(fc1(x)) ), with biases.
class Mlp : public Module {
 public:
  Mlp(int64_t width, int64_t hidden);
  /// gelu_tanh(fc1(x)), the input of fc2.
  at::Tensor hidden(const at::Tensor& x, bool fused) const;

  Linear fc1, fc2;
  const Fp8Linear* fp8_fc1 = nullptr;
  const Fp8Linear* fp8_fc2 = nullptr;
};

}  // namespace longship::nn
