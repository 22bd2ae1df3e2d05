// Shapes of geglu, swiglu and gelu_bias without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/activation_check.h"

namespace longship::ops {
namespace {

at::Tensor geglu_meta(const at::Tensor& gate_up) {
  return at::empty(check_gated("geglu", gate_up).out_sizes, gate_up.options());
}

at::Tensor geglu_backward_meta(const at::Tensor& dy, const at::Tensor& gate_up) {
  check_gated_backward("geglu_backward", dy, gate_up);
  return at::empty_like(gate_up);
}

std::tuple<at::Tensor, at::Tensor> geglu_backward_recompute_meta(const at::Tensor& dy,
                                                                 const at::Tensor& gate_up) {
  check_gated_backward("geglu_backward", dy, gate_up);
  return {at::empty_like(gate_up), at::empty_like(dy)};
}

at::Tensor swiglu_meta(const at::Tensor& gate_up) {
  return at::empty(check_gated("swiglu", gate_up).out_sizes, gate_up.options());
}

at::Tensor swiglu_backward_meta(const at::Tensor& dy, const at::Tensor& gate_up) {
  check_gated_backward("swiglu_backward", dy, gate_up);
  return at::empty_like(gate_up);
}

at::Tensor gelu_bias_meta(const at::Tensor& x, const at::Tensor& bias) {
  check_gelu_bias(x, bias);
  return at::empty_like(x);
}

std::tuple<at::Tensor, at::Tensor> gelu_bias_backward_meta(const at::Tensor& dy,
                                                           const at::Tensor& x,
                                                           const at::Tensor& bias) {
  check_gelu_bias_backward(dy, x, bias);
  return {at::empty_like(x), at::empty_like(bias)};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("geglu", geglu_meta);
  m.impl("geglu_backward", geglu_backward_meta);
  m.impl("geglu_backward_recompute", geglu_backward_recompute_meta);
  m.impl("swiglu", swiglu_meta);
  m.impl("swiglu_backward", swiglu_backward_meta);
  m.impl("gelu_bias", gelu_bias_meta);
  m.impl("gelu_bias_backward", gelu_bias_backward_meta);
}

}  // namespace
}  // namespace longship::ops
