#pragma once
// RMS normalisation with per-group scale and shift: y = x * rstd * (1 + scale[g]) + shift[g],
// rstd = 1 / sqrt(mean(x^2) + eps), everything in fp32, y rounded to the type of x.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// x, y [num_rows, width]; scale, shift [num_groups, width] fp32; row r belongs to group r /
/// (num_rows / num_groups). shift may be null. All contiguous, on the device of the stream.
struct RmsNormArgs {
  const void* x = nullptr;
  const float* scale = nullptr;
  const float* shift = nullptr;
  void* y = nullptr;
  float* rstd = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  float eps = 1e-6f;
  ElementType element = ElementType::kFloat32;
};

/// Gradients. dx [num_rows, width] in the type of x; dscale, dshift [num_groups, width] fp32,
/// overwritten; dshift may be null.
struct RmsNormBackwardArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const float* scale = nullptr;
  const float* rstd = nullptr;
  void* dx = nullptr;
  float* dscale = nullptr;
  float* dshift = nullptr;
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: reads x once, writes y once.
cudaError_t rms_norm_forward(const RmsNormArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Deterministic: every sum has a fixed order.
cudaError_t rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
