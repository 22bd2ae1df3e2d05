#pragma once
// Moving and clearing whole rows, for any element type. Host API of the CUDA kernels; plain
// pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// x [num_rows] rows of row_bytes, contiguous; rows_valid device scalar. Writes zero bytes to the
/// rows at and past *rows_valid; a value outside [0, num_rows] is clamped.
struct ZeroTailArgs {
  void* x = nullptr;
  const int32_t* rows_valid = nullptr;
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
};

/// y[m] = x[index[m]] for num_out rows of row_bytes, zero bytes where index[m] is negative.
/// index values are below the number of rows of x (not checked). x and y do not overlap. row_bytes
/// < 2^31.
struct GatherRowsArgs {
  const void* x = nullptr;
  const int64_t* index = nullptr;
  void* y = nullptr;
  int64_t num_out = 0;
  int64_t row_bytes = 0;
};

/// Asynchronous on `stream`. Touches only the rows that it clears.
cudaError_t zero_tail(const ZeroTailArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Bound by memory: reads and writes every taken row once.
cudaError_t gather_rows(const GatherRowsArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
