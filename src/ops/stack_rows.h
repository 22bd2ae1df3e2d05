#pragma once
// Tensors that lie behind each other in memory, seen as one.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// Rows of all tensors as one tensor [sum of rows, ...], without gradient: a view when they lie
/// behind each other in one allocation, else a copy. They differ in the first dimension only.
at::Tensor stack_rows(at::TensorList parts);
/// Whether stack_rows gives a view.
bool is_stacked(at::TensorList parts);

}  // namespace longship::ops
