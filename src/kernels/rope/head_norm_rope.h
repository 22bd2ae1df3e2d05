#pragma once
// Splits fused projections into queries and keys, normalises each of their heads and rotates it.
// For one head x with weight w and the angles of its row:
//   n    = x / sqrt(mean(x^2) + eps) * w
//   out1 = n1 cos - n2 sin, out2 = n2 cos + n1 sin     for the pairs (i, i + E/2)
// in fp32, one rounding. Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"
#include "kernels/rope/rope_qkv.h"

namespace longship::kernels {

/// What both directions share. qkv [num_rows, (H + 2G) E] contiguous: H query, G key, G value heads
/// in turn. Weights [E] (row_stride 0); cos, sin [num_rows, E/2], one row each for every row of
/// qkv (row_stride E/2). E even; powers of two from 16 to 512 are fast.
struct HeadNormRopeShape {
  const void* qkv = nullptr;
  ParamRows q_weight;
  ParamRows k_weight;
  ParamRows cos;
  ParamRows sin;
  int64_t num_rows = 0;
  int64_t num_heads = 0;     // H
  int64_t num_kv_heads = 0;  // G
  int64_t head_dim = 0;      // E
  float eps = 1e-6f;
  ElementType element = ElementType::kFloat32;  // of qkv, q, k and their gradients
};

/// q [num_rows, H, E], k [num_rows, G, E], contiguous. Value heads are not touched.
struct HeadNormRopeArgs {
  HeadNormRopeShape shape;
  void* q = nullptr;
  void* k = nullptr;
};

/// d_qkv [num_rows, (H + 2G) E], contiguous, every element written: gradients of q and k through
/// rotation and norm, that of v as it is. With dn the gradient turned back, d = dn * w, x_hat = x *
/// rstd: dx = rstd * (d - x_hat * mean(d * x_hat)), dw = sum of dn * x_hat over rows and heads.
/// rstd is computed again.
struct HeadNormRopeBackwardArgs {
  HeadNormRopeShape shape;
  RopeHeads dq;
  RopeHeads dk;
  RopeHeads dv;
  void* d_qkv = nullptr;
  ParamGradient dq_weight;     // [E]
  ParamGradient dk_weight;     // [E]
  float* workspace = nullptr;  // head_norm_rope_backward_workspace_bytes
};

/// Asynchronous on `stream`. Bound by memory: reads queries and keys once, writes them once.
cudaError_t head_norm_rope_forward(const HeadNormRopeArgs& args, cudaStream_t stream);

/// Asynchronous on `stream`, two launches. Deterministic: every sum has a fixed order. Without rows
/// the gradients of the weights are set to zero. Bound by memory: reads queries, keys and all
/// gradients once, writes d_qkv once.
cudaError_t head_norm_rope_backward(const HeadNormRopeBackwardArgs& args, cudaStream_t stream);

/// Bytes that `workspace` must have, 16-byte aligned; all other fields of args are set.
int64_t head_norm_rope_backward_workspace_bytes(const HeadNormRopeBackwardArgs& args);

}  // namespace longship::kernels
