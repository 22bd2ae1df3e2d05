#include "nn/swiglu.h"

#include <ATen/ops/silu.h>

#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/swiglu.h"

namespace longship::nn {

at::Tensor swiglu(const at::Tensor& gate_up, bool fused) {
  if (fused) return ops::swiglu(gate_up);
  const int64_t half = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, half)) * gate_up.narrow(-1, half, half);
}

SwiGluMlp::SwiGluMlp(int64_t width, int64_t hidden)
    : gate_proj(width, hidden, false),
      up_proj(width, hidden, false),
      down_proj(hidden, width, false) {
  register_child("gate_proj", gate_proj);
  register_child("up_proj", up_proj);
  register_child("down_proj", down_proj);
  register_stack({&gate_proj.weight, &up_proj.weight});
}

at::Tensor SwiGluMlp::forward(const at::Tensor& x, const Fused& fused) const {
  if (!fused.stacked && !fused.activations && !fp8_gate_up) {
    return product(down_proj, at::silu(gate_proj.forward(x)) * up_proj.forward(x), fp8_down);
  }
  const at::Tensor gate_up = fp8_gate_up
                                 ? fp8_gate_up->forward(x, {gate_proj.weight, up_proj.weight})
                                 : stacked_linear(x, {gate_proj.weight, up_proj.weight});
  return product(down_proj, swiglu(gate_up, fused.activations), fp8_down);
}

}  // namespace longship::nn
