#include "nn/mlp.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>

#include "nn/tensor_math.h"

namespace longship::nn {

at::Tensor geglu(const at::Tensor& gate, const at::Tensor& up) {
  return at::gelu(gate, "tanh") * up;
}

GatedMlp::GatedMlp(int64_t width, int64_t hidden)
    : gate_proj(width, hidden, false),
      up_proj(width, hidden, false),
      down_proj(hidden, width, false) {
  register_child("gate_proj", gate_proj);
  register_child("up_proj", up_proj);
  register_child("down_proj", down_proj);
}

at::Tensor GatedMlp::forward(const at::Tensor& x) const {
  const std::vector<at::Tensor> parts = linear_group(x, {&gate_proj, &up_proj});
  return down_proj.forward(geglu(parts[0], parts[1]));
}

Mlp::Mlp(int64_t width, int64_t hidden) : fc1(width, hidden, true), fc2(hidden, width, true) {
  register_child("fc1", fc1);
  register_child("fc2", fc2);
}

at::Tensor Mlp::forward(const at::Tensor& x) const {
  return fc2.forward(at::gelu(fc1.forward(x), "tanh"));
}

}  // namespace longship::nn
