#include "nn/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

namespace longship::nn {

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType dtype = x.scalar_type();
  return at::linear(x, weight.to(dtype), bias.defined() ? bias.to(dtype) : bias);
}

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  register_parameter("weight", weight, {out, in});
  if (with_bias) register_parameter("bias", bias, {out});
}

std::vector<at::Tensor> linear_group(const at::Tensor& x,
                                     const std::vector<const Linear*>& layers) {
  constexpr int64_t kStackBelow = 1 << 20;  // weight elements
  std::vector<at::Tensor> weights, biases;
  std::vector<int64_t> widths;
  int64_t elements = 0;
  for (const Linear* layer : layers) {
    weights.push_back(layer->weight);
    if (layer->bias.defined()) biases.push_back(layer->bias);
    widths.push_back(layer->weight.size(0));
    elements += layer->weight.numel();
  }
  if (elements < kStackBelow) {
    const at::Tensor bias = biases.empty() ? at::Tensor() : at::cat(biases);
    return linear(x, at::cat(weights), bias).split_with_sizes(widths, -1);
  }
  std::vector<at::Tensor> out;
  for (const Linear* layer : layers) out.push_back(layer->forward(x));
  return out;
}

LayerNorm::LayerNorm(int64_t width, double eps) : eps_(eps) {
  register_parameter("weight", weight, {width});
  register_parameter("bias", bias, {width});
}

at::Tensor LayerNorm::forward(const at::Tensor& x) const {
  const at::ScalarType dtype = x.scalar_type();
  if (x.is_meta()) return at::empty_like(x);  // LibTorch has no meta kernel of its own
  return at::layer_norm(x, {x.size(-1)}, weight.to(dtype), bias.to(dtype), eps_);
}

}  // namespace longship::nn
