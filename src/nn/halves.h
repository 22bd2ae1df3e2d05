#pragma once
// The two halves of the columns of a matrix.

#include <ATen/core/Tensor.h>

#include <utility>

namespace longship::nn {

/// Columns [0, W) and [W, 2 W) of x [R, 2 W], as views. Where their gradients already lie side by
/// side in one matrix, as ops::stream_norm gives those of scale and shift, that matrix is the
/// gradient of x, without a copy.
std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& x);

}  // namespace longship::nn
