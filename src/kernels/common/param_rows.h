#pragma once
// Parameters of a row-wise operator that may differ between groups of rows, and their gradients.

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// Row g starts at data + g * row_stride elements; its elements are adjacent. row_stride 0: one row
/// for all groups. data may be null: the parameter is absent. Any alignment of the element type.
struct ParamRows {
  const void* data = nullptr;
  int64_t row_stride = 0;
  ElementType element = ElementType::kFloat32;
};

/// [num_groups, width], overwritten; row g starts at data + g * row_stride elements (0: rows follow
/// each other), its elements are adjacent. num_groups is the number of groups of the operator, or
/// 1: the sum over all rows. data may be null: not wanted.
struct ParamGradient {
  void* data = nullptr;
  int64_t num_groups = 1;
  ElementType element = ElementType::kFloat32;
  int64_t row_stride = 0;
};

}  // namespace longship::kernels
