#pragma once
// RMS normalisation with per-group scale and shift, alone or after a gated residual addition:
//   x     = h + branch * gate[g], rounded to the element type   (without branch: x is given)
//   rstd  = 1 / sqrt(mean(x^2) + eps)
//   y     = x * rstd * (offset + scale[g]) + shift[g]
// Everything in fp32; y rounded to the element type. Host API of the CUDA kernels; plain pointers,
// no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"

namespace longship::kernels {

/// Tensors [num_rows, width] contiguous, of type `element`, on the device of the stream, none
/// overlapping another. Row r belongs to group r / (num_rows / num_groups).
struct RmsNormArgs {
  const void* h = nullptr;
  const void* branch = nullptr;  // null: no addition, x = h
  ParamRows gate;                // null: plain addition
  ParamRows scale;
  ParamRows shift;        // null: none
  void* h_out = nullptr;  // x, written only with a branch
  void* y = nullptr;
  float* rstd = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  float eps = 1e-6f;
  float offset = 1.0f;  // 0 where scale is the whole factor
  ElementType element = ElementType::kFloat32;
};

/// Gradients of the above, with x_hat = x * rstd and d = dy * (offset + scale[g]):
///   dh      = dh_out + rstd * (d - x_hat * mean(d * x_hat))
///   dbranch = dh * gate[g],  dgate[g] = sum of dh * branch
///   dscale[g] = sum of dy * x_hat,  dshift[g] = sum of dy      over the rows of the group
/// dh enters dbranch and dgate before it is rounded.
struct RmsNormBackwardArgs {
  const void* dh_out = nullptr;  // null: zero
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* branch = nullptr;  // with a gate only
  ParamRows gate;                // null: dbranch is dh, not written
  ParamRows scale;
  const float* rstd = nullptr;
  void* dh = nullptr;
  void* dbranch = nullptr;  // with a gate only
  ParamGradient dgate;      // with a gate only
  ParamGradient dscale;
  ParamGradient dshift;        // null: no shift
  float* workspace = nullptr;  // rms_norm_backward_workspace_bytes
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  float offset = 1.0f;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: reads h and branch once, writes h_out and y once, for
/// widths up to 4096 that are multiples of 8 and tensors aligned to 16 bytes; others reread rows.
cudaError_t rms_norm_forward(const RmsNormArgs& args, cudaStream_t stream);

/// Asynchronous on `stream`, two launches. Deterministic: every sum has a fixed order. Without rows
/// the parameter gradients are set to zero.
cudaError_t rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream);

/// Bytes that `workspace` must have, 16-byte aligned; all other fields of args are set.
int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args);

}  // namespace longship::kernels
