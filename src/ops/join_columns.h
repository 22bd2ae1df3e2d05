#pragma once
// Matrices side by side as one, and the sums over its rows. No dispatcher operator: used inside
// backward passes, nothing differentiates through it.

#include <ATen/core/Tensor.h>

namespace longship::ops {

struct JoinedColumns {
  at::Tensor values;  // [R, sum of C_i], contiguous; the part itself where there is one
  at::Tensor sums;    // [sum of C_i], over rows, added in fp32; undefined where not asked for
};

/// parts: [R, C_i], fp32 or bf16 alike, on one device. On CUDA one kernel does both where rows are
/// few (up to 1024), widths multiples of 8 and rows aligned to 16 bytes, else the library's; can be
/// captured. Throws ShapeError.
JoinedColumns join_columns(at::TensorList parts, bool with_sums);

}  // namespace longship::ops
