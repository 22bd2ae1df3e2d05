#pragma once
// Argument checks shared by the implementations of gelu_bias_dropout. They throw ShapeError naming
// the operator, the argument, and what was expected and given.

#include "ops/activation_check.h"
#include "ops/dropout_check.h"

namespace longship::ops {

struct GeluDropoutShape {
  ActivationShape rows;
  DropoutPlan dropout;
};

GeluDropoutShape check_gelu_bias_dropout(const at::Tensor& x, const at::Tensor& bias,
                                         const at::Tensor& keys, int64_t site, double p);
GeluDropoutShape check_gelu_bias_dropout_backward(const at::Tensor& dy, const at::Tensor& x,
                                                  const at::Tensor& bias, const at::Tensor& keys,
                                                  int64_t site, double p);

}  // namespace longship::ops
