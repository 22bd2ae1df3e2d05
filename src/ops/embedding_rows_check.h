#pragma once
// Argument checks shared by the implementations of embedding_rows. They throw ShapeError naming the
// operator, the argument, and the expected and given shapes.

#include <ATen/core/Tensor.h>

namespace longship::ops {

void check_embedding_rows(const at::Tensor& weight, const at::Tensor& ids);
void check_embedding_rows_backward(const at::Tensor& dy, const at::Tensor& ids,
                                   const at::Tensor& grad_rows, const at::Tensor& row_flags);

}  // namespace longship::ops
