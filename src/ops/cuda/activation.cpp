// CUDA launches of geglu, swiglu and gelu_bias: check, allocate, call the kernel on the current
// stream.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/activation/geglu.h"
#include "kernels/activation/gelu_bias.h"
#include "kernels/activation/swiglu.h"
#include "ops/activation_check.h"
#include "ops/cuda/launch.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using GatedForward = cudaError_t (*)(const kernels::GatedArgs&, cudaStream_t);
using GatedBackward = cudaError_t (*)(const kernels::GatedBackwardArgs&, cudaStream_t);

at::Tensor gated(const char* op, const at::Tensor& gate_up, GatedForward kernel) {
  const ActivationShape shape = check_gated(op, gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  at::Tensor y = at::empty(shape.out_sizes, gate_up.options());
  kernels::GatedArgs args;
  args.gate_up = gate_up.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.num_rows = shape.num_rows;
  args.width = shape.width;
  args.element = element_of(op, gate_up);
  check_launch(op, kernel(args, c10::cuda::getCurrentCUDAStream()));
  return y;
}

/// Writes d_gate_up, and y unless it is undefined.
void gated_gradient(const char* op, const at::Tensor& dy, const at::Tensor& gate_up,
                    GatedBackward kernel, at::Tensor& d_gate_up, at::Tensor& y) {
  const ActivationShape shape = check_gated_backward(op, dy, gate_up);
  kernels::GatedBackwardArgs args;
  args.dy = dy.const_data_ptr();
  args.gate_up = gate_up.const_data_ptr();
  args.d_gate_up = d_gate_up.mutable_data_ptr();
  args.y = y.defined() ? y.mutable_data_ptr() : nullptr;
  args.num_rows = shape.num_rows;
  args.width = shape.width;
  args.element = element_of(op, gate_up);
  check_launch(op, kernel(args, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor gated_backward(const char* op, const at::Tensor& dy, const at::Tensor& gate_up,
                          GatedBackward kernel) {
  check_devices(op, {{"gate_up", gate_up}, {"dy", dy}});
  const c10::cuda::CUDAGuard guard(gate_up.device());
  at::Tensor d_gate_up = at::empty_like(gate_up);
  at::Tensor no_y;
  gated_gradient(op, dy, gate_up, kernel, d_gate_up, no_y);
  return d_gate_up;
}

at::Tensor geglu_cuda(const at::Tensor& gate_up) {
  return gated("geglu", gate_up, kernels::geglu_forward);
}

at::Tensor geglu_backward_cuda(const at::Tensor& dy, const at::Tensor& gate_up) {
  return gated_backward("geglu_backward", dy, gate_up, kernels::geglu_backward);
}

at::Tensor swiglu_cuda(const at::Tensor& gate_up) {
  return gated("swiglu", gate_up, kernels::swiglu_forward);
}

at::Tensor swiglu_backward_cuda(const at::Tensor& dy, const at::Tensor& gate_up) {
  return gated_backward("swiglu_backward", dy, gate_up, kernels::swiglu_backward);
}

std::tuple<at::Tensor, at::Tensor> geglu_backward_recompute_cuda(const at::Tensor& dy,
                                                                 const at::Tensor& gate_up) {
  check_devices("geglu_backward_recompute", {{"gate_up", gate_up}, {"dy", dy}});
  const c10::cuda::CUDAGuard guard(gate_up.device());
  at::Tensor d_gate_up = at::empty_like(gate_up);
  at::Tensor y = at::empty_like(dy);
  gated_gradient("geglu_backward_recompute", dy, gate_up, kernels::geglu_backward, d_gate_up, y);
  return {d_gate_up, y};
}

at::Tensor gelu_bias_cuda(const at::Tensor& x, const at::Tensor& bias) {
  const ActivationShape shape = check_gelu_bias(x, bias);
  check_devices("gelu_bias", {{"x", x}, {"bias", bias}});
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  kernels::GeluBiasArgs args;
  args.x = x.const_data_ptr();
  args.bias = bias.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.num_rows = shape.num_rows;
  args.width = shape.width;
  args.element = element_of("gelu_bias", x);
  args.bias_element = element_of("gelu_bias", bias);
  check_launch("gelu_bias", kernels::gelu_bias_forward(args, c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor> gelu_bias_backward_cuda(const at::Tensor& dy,
                                                           const at::Tensor& x,
                                                           const at::Tensor& bias) {
  const ActivationShape shape = check_gelu_bias_backward(dy, x, bias);
  check_devices("gelu_bias_backward", {{"x", x}, {"bias", bias}, {"dy", dy}});
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor dx = at::empty_like(x);
  at::Tensor dbias = at::empty_like(bias);
  at::Tensor partial =
      at::empty({kernels::gelu_bias_num_partials(shape.num_rows, shape.width), shape.width},
                x.options().dtype(at::kFloat));
  kernels::GeluBiasBackwardArgs args;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  args.bias = bias.const_data_ptr();
  args.dx = dx.mutable_data_ptr();
  args.dbias = dbias.mutable_data_ptr();
  args.partial = partial.mutable_data_ptr<float>();
  args.num_rows = shape.num_rows;
  args.width = shape.width;
  args.element = element_of("gelu_bias_backward", x);
  args.bias_element = element_of("gelu_bias_backward", bias);
  check_launch("gelu_bias_backward",
               kernels::gelu_bias_backward(args, c10::cuda::getCurrentCUDAStream()));
  return {dx, dbias};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("geglu", geglu_cuda);
  m.impl("geglu_backward", geglu_backward_cuda);
  m.impl("geglu_backward_recompute", geglu_backward_recompute_cuda);
  m.impl("swiglu", swiglu_cuda);
  m.impl("swiglu_backward", swiglu_backward_cuda);
  m.impl("gelu_bias", gelu_bias_cuda);
  m.impl("gelu_bias_backward", gelu_bias_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
