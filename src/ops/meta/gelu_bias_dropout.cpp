// Shapes of gelu_bias_dropout without memory.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/gelu_bias_dropout_check.h"

namespace longship::ops {
namespace {

at::Tensor gelu_bias_dropout_meta(const at::Tensor& x, const at::Tensor& bias,
                                  const at::Tensor& keys, int64_t site, double p) {
  check_gelu_bias_dropout(x, bias, keys, site, p);
  return at::empty_like(x);
}

std::tuple<at::Tensor, at::Tensor> gelu_bias_dropout_backward_meta(const at::Tensor& dy,
                                                                   const at::Tensor& x,
                                                                   const at::Tensor& bias,
                                                                   const at::Tensor& keys,
                                                                   int64_t site, double p) {
  check_gelu_bias_dropout_backward(dy, x, bias, keys, site, p);
  return {at::empty_like(x), at::empty_like(bias)};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("gelu_bias_dropout", gelu_bias_dropout_meta);
  m.impl("gelu_bias_dropout_backward", gelu_bias_dropout_backward_meta);
}

}  // namespace
}  // namespace longship::ops
