#pragma once
// Checks of arguments that many operators share. All throw ShapeError naming the operator, the
// argument, and what was expected and given.

#include <ATen/core/Tensor.h>

#include <initializer_list>

namespace longship::ops {

/// An argument with its name in messages.
struct NamedTensor {
  const char* name;
  const at::Tensor& tensor;
};

void check_contiguous(const char* op, std::initializer_list<NamedTensor> tensors);
void check_sizes(const char* op, const NamedTensor& tensor, at::IntArrayRef expected);
void check_dtype(const char* op, const NamedTensor& tensor, at::ScalarType expected);
/// All on the device of the first.
void check_devices(const char* op, std::initializer_list<NamedTensor> tensors);
/// A count that lives on the device: int32, one element.
void check_rows_valid(const char* op, const at::Tensor& rows_valid);
/// Refuses an in-place operation on a leaf that requires grad while gradients are recorded.
void check_not_leaf(const char* op, const NamedTensor& tensor);
/// Refuses second derivatives: call first in every backward.
void check_first_derivative(const char* op);

}  // namespace longship::ops
