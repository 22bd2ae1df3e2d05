#pragma once
// Argument checks shared by the CPU, CUDA and Meta implementations of the normalisations.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace longship::ops {

/// A matrix of rows, in groups of equal size with parameters of their own.
struct GroupedRows {
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
};

/// A parameter [D], [1, D] or [G, D]; absent where the tensor is nullopt.
struct GroupedParam {
  const char* name;
  std::optional<at::Tensor> tensor;
};

/// Shape of x [..., D] with its parameters; G is the largest number of rows among them. Throws
/// ShapeError naming the operator, the argument, and the expected and given shapes.
GroupedRows check_grouped_rows(const char* op, const at::Tensor& x,
                               std::initializer_list<GroupedParam> params);

/// `tensor` must have the shape, dtype and device of x and be contiguous.
void check_like(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& x);

/// As check_grouped_rows for parameters that all rows share: each must be [D].
GroupedRows check_rows(const char* op, const at::Tensor& x,
                       std::initializer_list<GroupedParam> params);

/// dtype of statistics and of the arithmetic: fp64 for fp64, else fp32.
at::ScalarType accumulate_type(const at::Tensor& x);

}  // namespace longship::ops
