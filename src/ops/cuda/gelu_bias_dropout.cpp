// CUDA launch of gelu_bias_dropout: check, allocate, call the kernel of gelu_bias with keys.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "kernels/activation/gelu_bias.h"
#include "ops/cuda/dropout_site.h"
#include "ops/cuda/launch.h"
#include "ops/gelu_bias_dropout_check.h"

namespace longship::ops {
namespace {

kernels::GeluDropout dropout_args(const GeluDropoutShape& shape, const at::Tensor& keys) {
  kernels::GeluDropout out;
  out.keys = keys.const_data_ptr<int64_t>();
  const int64_t samples = std::max<int64_t>(shape.dropout.num_samples, 1);
  out.rows_per_sample = static_cast<uint32_t>(std::max<int64_t>(shape.rows.num_rows / samples, 1));
  out.site = dropout_site(shape.dropout);
  return out;
}

at::Tensor gelu_bias_dropout_cuda(const at::Tensor& x, const at::Tensor& bias,
                                  const at::Tensor& keys, int64_t site, double p) {
  constexpr const char* kOp = "gelu_bias_dropout";
  const GeluDropoutShape shape = check_gelu_bias_dropout(x, bias, keys, site, p);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  kernels::GeluBiasArgs args;
  args.x = x.const_data_ptr();
  args.bias = bias.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.dropout = dropout_args(shape, keys);
  args.num_rows = shape.rows.num_rows;
  args.width = shape.rows.width;
  args.element = element_of(kOp, x);
  args.bias_element = element_of(kOp, bias);
  check_launch(kOp, kernels::gelu_bias_forward(args, c10::cuda::getCurrentCUDAStream()));
  return y;
}

std::tuple<at::Tensor, at::Tensor> gelu_bias_dropout_backward_cuda(const at::Tensor& dy,
                                                                   const at::Tensor& x,
                                                                   const at::Tensor& bias,
                                                                   const at::Tensor& keys,
                                                                   int64_t site, double p) {
  constexpr const char* kOp = "gelu_bias_dropout_backward";
  const GeluDropoutShape shape = check_gelu_bias_dropout_backward(dy, x, bias, keys, site, p);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor dx = at::empty_like(x);
  at::Tensor dbias = at::empty_like(bias);
  const int64_t rows = shape.rows.num_rows, width = shape.rows.width;
  at::Tensor partial = at::empty({kernels::gelu_bias_num_partials(rows, width), width},
                                 x.options().dtype(at::kFloat));
  kernels::GeluBiasBackwardArgs args;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  args.bias = bias.const_data_ptr();
  args.dx = dx.mutable_data_ptr();
  args.dbias = dbias.mutable_data_ptr();
  args.partial = partial.mutable_data_ptr<float>();
  args.dropout = dropout_args(shape, keys);
  args.num_rows = rows;
  args.width = width;
  args.element = element_of(kOp, x);
  args.bias_element = element_of(kOp, bias);
  check_launch(kOp, kernels::gelu_bias_backward(args, c10::cuda::getCurrentCUDAStream()));
  return {dx, dbias};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("gelu_bias_dropout", gelu_bias_dropout_cuda);
  m.impl("gelu_bias_dropout_backward", gelu_bias_dropout_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
