#pragma once
// The gradient of the weight of a product, written where it is wanted.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// dy^T x [out, in] for y = x weight^T: dy [rows, out], x [rows, in], in the weight's dtype. In the
/// place that is offered for `weight` (ops/gradient_place.h), else in memory of its own.
at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight);

/// [..., width] as [rows, width].
at::Tensor rows_of(const at::Tensor& x);

}  // namespace longship::nn
