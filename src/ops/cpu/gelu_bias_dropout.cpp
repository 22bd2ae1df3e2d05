// CPU implementation of gelu_bias_dropout, the oracle of the CUDA kernel: the two operators that it
// stands for.
#include <torch/library.h>

#include <tuple>

#include "ops/dropout.h"
#include "ops/gelu_bias.h"
#include "ops/gelu_bias_dropout_check.h"
#include "ops/handle.h"

namespace longship::ops {
namespace {

using TensorPair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor gelu_bias_dropout_cpu(const at::Tensor& x, const at::Tensor& bias,
                                 const at::Tensor& keys, int64_t site, double p) {
  check_gelu_bias_dropout(x, bias, keys, site, p);
  return dropout(gelu_bias(x, bias), keys, site, p);
}

TensorPair gelu_bias_dropout_backward_cpu(const at::Tensor& dy, const at::Tensor& x,
                                          const at::Tensor& bias, const at::Tensor& keys,
                                          int64_t site, double p) {
  check_gelu_bias_dropout_backward(dy, x, bias, keys, site, p);
  static const auto op =
      typed_op<TensorPair(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "longship::gelu_bias_backward");
  return op.call(dropout(dy, keys, site, p), x, bias);
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("gelu_bias_dropout", gelu_bias_dropout_cpu);
  m.impl("gelu_bias_dropout_backward", gelu_bias_dropout_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
