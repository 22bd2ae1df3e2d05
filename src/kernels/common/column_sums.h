#pragma once
// Second stage of sums over rows: adds the partial sums that the blocks of a row-wise kernel wrote.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/param_rows.h"

namespace longship::kernels {

/// partial [num_partials, width] fp32, contiguous, the partials of a group adjacent; out.num_groups
/// divides num_partials. No partials: the sums are zero. out.data null: skipped.
struct ColumnSum {
  const float* partial = nullptr;
  int64_t num_partials = 0;
  ParamGradient out;
};

constexpr int kMaxColumnSums = 3;

/// Up to kMaxColumnSums sums of one width in one launch, rounded to the type of each output.
/// Asynchronous on `stream`. Deterministic.
cudaError_t column_sums(const ColumnSum* sums, int count, int64_t width, cudaStream_t stream);

}  // namespace longship::kernels
