#pragma once
// Feed-forward blocks.

#include <ATen/core/Tensor.h>

#include "nn/linear.h"
#include "nn/module.h"

namespace longship::nn {

/// gelu_tanh(gate) * up, the element-wise half of a gated MLP. Both [..., F] -> [..., F].
at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up);

/// Gemma's MLP: down( gelu_tanh(gate(x)) * up(x) ), no biases.
class GatedMlp : public Module {
 public:
  GatedMlp(int64_t width, int64_t hidden);
  at::Tensor forward(const at::Tensor& x) const;

  Linear gate_proj, up_proj, down_proj;
};

/// SigLIP's MLP: fc2( gelu_tanh(fc1(x)) ), with biases.
class Mlp : public Module {
 public:
  Mlp(int64_t width, int64_t hidden);
  at::Tensor forward(const at::Tensor& x) const;

  Linear fc1, fc2;
};

}  // namespace longship::nn
