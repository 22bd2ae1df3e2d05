#include "ops/activation_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {

ActivationShape check_gated(const char* op, const at::Tensor& gate_up) {
  LS_CHECK(gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0, ShapeError,
           "{}: gate_up must be [..., 2H], got [{}]", op, fmt::join(gate_up.sizes(), ", "));
  check_contiguous(op, {{"gate_up", gate_up}});
  ActivationShape shape;
  shape.width = gate_up.size(-1) / 2;
  shape.num_rows = shape.width == 0 ? 0 : gate_up.numel() / (2 * shape.width);
  shape.out_sizes = gate_up.sizes().vec();
  shape.out_sizes.back() = shape.width;
  return shape;
}

ActivationShape check_gated_backward(const char* op, const at::Tensor& dy,
                                     const at::Tensor& gate_up) {
  ActivationShape shape = check_gated(op, gate_up);
  check_sizes(op, {"dy", dy}, shape.out_sizes);
  check_dtype(op, {"dy", dy}, gate_up.scalar_type());
  check_contiguous(op, {{"dy", dy}});
  return shape;
}

ActivationShape check_gelu_bias(const at::Tensor& x, const at::Tensor& bias) {
  LS_CHECK(x.dim() >= 1, ShapeError, "gelu_bias: x needs at least one dimension");
  check_sizes("gelu_bias", {"bias", bias}, {x.size(-1)});
  check_contiguous("gelu_bias", {{"x", x}, {"bias", bias}});
  ActivationShape shape;
  shape.width = x.size(-1);
  shape.num_rows = shape.width == 0 ? 0 : x.numel() / shape.width;
  shape.out_sizes = x.sizes().vec();
  return shape;
}

ActivationShape check_gelu_bias_backward(const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& bias) {
  ActivationShape shape = check_gelu_bias(x, bias);
  check_sizes("gelu_bias_backward", {"dy", dy}, x.sizes());
  check_dtype("gelu_bias_backward", {"dy", dy}, x.scalar_type());
  check_contiguous("gelu_bias_backward", {{"dy", dy}});
  return shape;
}

}  // namespace longship::ops
