#pragma once
// Layer normalisation, alone or after a residual addition:
//   x    = h + branch, rounded to the element type   (without branch: x is given)
//   mean = mean(x), rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//   y    = (x - mean) * rstd * weight + bias
// Everything in fp32, the variance from deviations; y rounded to the element type. Host API of the
// CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"

namespace longship::kernels {

/// Tensors [num_rows, width] contiguous, of type `element`, on the device of the stream, none
/// overlapping another; parameters [width] (row_stride is not used).
struct LayerNormArgs {
  const void* h = nullptr;
  const void* branch = nullptr;  // null: no addition, x = h
  ParamRows weight;
  ParamRows bias;
  void* h_out = nullptr;  // x, written only with a branch
  void* y = nullptr;
  float* mean = nullptr;  // [num_rows]
  float* rstd = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t width = 0;
  float eps = 1e-6f;
  ElementType element = ElementType::kFloat32;
};

/// Gradients of the above, with x_hat = (x - mean) * rstd and d = dy * weight:
///   dh = dh_out + rstd * (d - mean(d) - x_hat * mean(d * x_hat)),  the gradient of branch as well
///   dweight = sum of dy * x_hat,  dbias = sum of dy   over all rows
struct LayerNormBackwardArgs {
  const void* dh_out = nullptr;  // null: zero
  const void* dy = nullptr;
  const void* x = nullptr;
  ParamRows weight;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  void* dh = nullptr;
  ParamGradient dweight;
  ParamGradient dbias;
  float* workspace = nullptr;  // layer_norm_backward_workspace_bytes
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: reads h and branch once, writes h_out and y once, for
/// widths up to 4096 that are multiples of 8 and tensors aligned to 16 bytes; others reread rows.
cudaError_t layer_norm_forward(const LayerNormArgs& args, cudaStream_t stream);

/// Asynchronous on `stream`, two launches. Deterministic: every sum has a fixed order. Without rows
/// the parameter gradients are set to zero.
cudaError_t layer_norm_backward(const LayerNormBackwardArgs& args, cudaStream_t stream);

/// Bytes that `workspace` must have, 16-byte aligned; all other fields of args are set.
int64_t layer_norm_backward_workspace_bytes(const LayerNormBackwardArgs& args);

}  // namespace longship::kernels
