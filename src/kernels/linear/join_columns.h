#pragma once
// Matrices of few rows side by side as one, and the sums over its rows: the gradient of a product
// from those of its parts (queries, keys, values), and the gradient of its bias.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

constexpr int kMaxJoinedParts = 4;

/// A part [num_rows, width]: row r starts at data + r * row_stride elements, elements of a row are
/// adjacent. width and row_stride are multiples of 8, data is aligned to 16 bytes.
struct JoinedPart {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t width = 0;
};

/// values [num_rows, sum of widths], contiguous; null: not wanted. sums [sum of widths]: sums over
/// rows in fp32 and in a fixed order, rounded once; null: not wanted. Both of type `element`,
/// aligned to 16 bytes.
struct JoinColumnsArgs {
  JoinedPart parts[kMaxJoinedParts];
  int num_parts = 0;
  int64_t num_rows = 0;
  void* values = nullptr;
  void* sums = nullptr;
  ElementType element = ElementType::kBFloat16;
};

/// Rows up to which one launch is faster than the library's copy and sum (H200, 3 x 1536 columns:
/// 1.7 times at 164 rows, 1.6 at 1020, 1.0 at 1071).
constexpr int64_t kMostJoinedRows = 1024;

/// Asynchronous on `stream`. Deterministic. Without rows the sums are zero.
cudaError_t join_columns(const JoinColumnsArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
