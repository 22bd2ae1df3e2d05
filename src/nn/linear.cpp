#include "nn/linear.h"

#include <ATen/ops/linear.h>

#include "nn/norm.h"

namespace longship::nn {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType dtype = x.scalar_type();
  return at::linear(x, weight.to(dtype), bias.defined() ? bias.to(dtype) : bias);
}

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  register_parameter("weight", weight, {out, in});
  if (with_bias) register_parameter("bias", bias, {out});
}

LayerNorm::LayerNorm(int64_t width, double eps) : eps_(eps) {
  register_parameter("weight", weight, {width});
  register_parameter("bias", bias, {width});
}

at::Tensor LayerNorm::forward(const at::Tensor& x, bool fused) const {
  return layer_norm(x, weight, bias, eps_, fused);
}

}  // namespace longship::nn
