#include "nn/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>

#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/geglu.h"
#include "ops/gelu_bias.h"

namespace longship::nn {

at::Tensor geglu(const at::Tensor& gate_up, bool fused) {
  if (fused) return ops::geglu(gate_up);
  const int64_t half = gate_up.size(-1) / 2;
  return at::gelu(gate_up.narrow(-1, 0, half), "tanh") * gate_up.narrow(-1, half, half);
}

GatedMlp::GatedMlp(int64_t width, int64_t hidden)
    : gate_proj(width, hidden, false),
      up_proj(width, hidden, false),
      down_proj(hidden, width, false) {
  register_child("gate_proj", gate_proj);
  register_child("up_proj", up_proj);
  register_child("down_proj", down_proj);
  register_stack({&gate_proj.weight, &up_proj.weight});
}

at::Tensor GatedMlp::forward(const at::Tensor& x, const Fused& fused) const {
  if (fp8) {
    return fp8->forward(x, gate_proj.weight, up_proj.weight, down_proj.weight);
  }
  if (!fused.stacked && !fused.activations) {
    return down_proj.forward(at::gelu(gate_proj.forward(x), "tanh") * up_proj.forward(x));
  }
  return down_proj.forward(
      geglu(stacked_linear(x, {gate_proj.weight, up_proj.weight}), fused.activations));
}

Mlp::Mlp(int64_t width, int64_t hidden) : fc1(width, hidden, true), fc2(hidden, width, true) {
  register_child("fc1", fc1);
  register_child("fc2", fc2);
}

at::Tensor Mlp::hidden(const at::Tensor& x, bool fused) const {
  if (fused && fc1.weight.scalar_type() == x.scalar_type()) {
    const at::Tensor product =
        fp8_fc1 ? fp8_fc1->forward(x, {fc1.weight}) : stacked_linear(x, {fc1.weight});
    return ops::gelu_bias(product, fc1.bias);
  }
  if (fp8_fc1) {
    return at::gelu(fp8_fc1->forward(x, {fc1.weight}, fc1.bias), "tanh");
  }
  return at::gelu(fc1.forward(x), "tanh");
}

}  // namespace longship::nn
