#include "nn/swiglu.h"

#include <ATen/ops/silu.h>

#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"

namespace longship::nn {

at::Tensor swiglu(const at::Tensor& gate_up) {
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
  if (fused.stacked) {
    return down_proj.forward(swiglu(stacked_linear(x, {gate_proj.weight, up_proj.weight})));
  }
  return down_proj.forward(at::silu(gate_proj.forward(x)) * up_proj.forward(x));
}

}  // namespace longship::nn
