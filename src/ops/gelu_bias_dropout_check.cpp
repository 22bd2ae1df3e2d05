#include "ops/gelu_bias_dropout_check.h"

#include <utility>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

GeluDropoutShape with_dropout(const char* op, ActivationShape rows, const at::Tensor& x,
                              const at::Tensor& bias, const at::Tensor& keys, int64_t site,
                              double p) {
  LS_CHECK(x.dim() >= 2, ShapeError, "{}: x must be [B, ..., H], got {} dimensions", op, x.dim());
  check_devices(op, {{"x", x}, {"bias", bias}, {"keys", keys}});
  return {std::move(rows), check_dropout_mask(op, keys, site, x.sizes(), p, x.scalar_type())};
}

}  // namespace

GeluDropoutShape check_gelu_bias_dropout(const at::Tensor& x, const at::Tensor& bias,
                                         const at::Tensor& keys, int64_t site, double p) {
  return with_dropout("gelu_bias_dropout", check_gelu_bias(x, bias), x, bias, keys, site, p);
}

GeluDropoutShape check_gelu_bias_dropout_backward(const at::Tensor& dy, const at::Tensor& x,
                                                  const at::Tensor& bias, const at::Tensor& keys,
                                                  int64_t site, double p) {
  constexpr const char* kOp = "gelu_bias_dropout_backward";
  ActivationShape rows = check_gelu_bias_backward(dy, x, bias);
  check_devices(kOp, {{"x", x}, {"dy", dy}});
  return with_dropout(kOp, std::move(rows), x, bias, keys, site, p);
}

}  // namespace longship::ops
