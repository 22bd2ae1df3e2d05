#pragma once
// Argument checks shared by the implementations of geglu, swiglu and gelu_bias.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longship::ops {

struct ActivationShape {
  int64_t num_rows = 0;
  int64_t width = 0;               // of the result
  std::vector<int64_t> out_sizes;  // of the result
};

/// Throws ShapeError naming the operator, the argument, and the expected and given shapes.
ActivationShape check_gated(const char* op, const at::Tensor& gate_up);
ActivationShape check_gated_backward(const char* op, const at::Tensor& dy,
                                     const at::Tensor& gate_up);
ActivationShape check_gelu_bias(const at::Tensor& x, const at::Tensor& bias);
ActivationShape check_gelu_bias_backward(const at::Tensor& dy, const at::Tensor& x,
                                         const at::Tensor& bias);

}  // namespace longship::ops
