#pragma once
// Splits fused projections into queries, keys and values and rotates queries and keys by their
// positions. Pairs (i, i + E/2): out1 = x1 cos - x2 sin, out2 = x2 cos + x1 sin, in fp32, one
// rounding. Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// What both directions share. cos, sin [P, head_dim / 2] fp32 contiguous; positions [num_rows]
/// int32, every one in [0, P), not checked. rows_valid: device scalar or null; rows at and past it
/// are neither rotated nor read, their results are zero, their positions may hold anything.
struct RopeQkvShape {
  const float* cos = nullptr;
  const float* sin = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* rows_valid = nullptr;
  int64_t num_rows = 0;
  int64_t num_heads = 0;     // H, may be 0
  int64_t num_kv_heads = 0;  // G
  int64_t head_dim = 0;      // E, even
  ElementType element = ElementType::kFloat32;
};

/// qkv [num_rows, (H + 2G) E]: H query, G key, G value heads in turn. q [num_rows, H, E], k, v
/// [num_rows, G, E]. All contiguous; q may be null where H is 0.
struct RopeQkvArgs {
  RopeQkvShape shape;
  const void* qkv = nullptr;
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
};

/// [num_rows, heads, E] with any row and head strides (in elements) and consecutive columns; null
/// means zero.
struct RopeHeads {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

/// d_qkv [num_rows, (H + 2G) E], contiguous, every element written.
struct RopeQkvBackwardArgs {
  RopeQkvShape shape;
  RopeHeads dq;
  RopeHeads dk;
  RopeHeads dv;
  void* d_qkv = nullptr;
};

/// Asynchronous on `stream`. Bound by memory: reads qkv once, writes q, k, v once; the tables stay
/// in the caches.
cudaError_t rope_qkv_forward(const RopeQkvArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. The inverse rotation.
cudaError_t rope_qkv_backward(const RopeQkvBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
