#pragma once
// Argument checks shared by the implementations of stream_norm, add_stream_norm and add_dropped.
// They throw ShapeError naming the operator, the argument, and what was expected and given.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/dropout_check.h"
#include "ops/norm_check.h"

namespace longship::ops {

using OptionalTensor = std::optional<at::Tensor>;

/// Arguments of a branch; `values` is absent in backward passes.
struct BranchArguments {
  OptionalTensor values, bias, keys;
  at::IntArrayRef sites;
  double p = 0;
};

/// Checked numbers of a call.
struct StreamRows {
  GroupedRows rows;                // num_groups: rows of scale and shift, at least 1
  int64_t num_samples = 1;         // groups of rows with a key, or with parameters, of their own
  std::vector<DropoutPlan> sites;  // none where nothing is dropped
};

/// h, its norm's parameters and the dtype of y.
StreamRows check_stream_norm(const char* op, const at::Tensor& h, const OptionalTensor& scale,
                             const OptionalTensor& shift, at::ScalarType dtype);
/// The same with a branch of `dtype`.
StreamRows check_add_stream_norm(const char* op, const at::Tensor& h, const BranchArguments& branch,
                                 const OptionalTensor& scale, const OptionalTensor& shift,
                                 at::ScalarType dtype);
/// `tensor` must have the sizes and device of h, be of `dtype` and contiguous.
void check_rows_like(const char* op, const char* name, const at::Tensor& tensor,
                     const at::Tensor& h, at::ScalarType dtype);

}  // namespace longship::ops
