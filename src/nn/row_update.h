#pragma once
// Rows of a packed stream that get other content: features of pictures among text. Index tables are
// on the device of the rows; nothing waits for the host, so both can be captured in a graph.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// A copy of h [N, W] whose rows `index` [M] int64, no row twice, are those of `rows` [M, W], cast
/// to the dtype of h. Differentiable in both: replaced rows of h get no gradient. Throws
/// ShapeError.
at::Tensor replace_rows(const at::Tensor& h, const at::Tensor& index, const at::Tensor& rows);

/// A copy of h [N, W] with rows [M, W], cast to the dtype of h, added to its rows `index` [M]
/// int64, no row twice. Differentiable in both. Throws ShapeError.
at::Tensor add_rows(const at::Tensor& h, const at::Tensor& index, const at::Tensor& rows);

}  // namespace longship::nn
