#pragma once
// Self-attention over samples packed behind each other (data::Packer): block-diagonal, so that a
// pack gives the results and the gradients of its samples alone.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::nn {

/// Where the rows of a pack lie (data::PackLayout as tensors on the device of the rows).
struct PackedSamples {
  at::Tensor cu_seqlens;   // [B + 1] int32
  at::Tensor segment_ids;  // [T] int32: equal inside a sample, 0 for padding rows, which lie last
  int64_t longest = 0;     // rows of the longest sample, or an upper bound
};

/// q [T, H, E]; k, v [T, G, E], G divides H. Row t sees the rows of its own sample; with `causal`
/// those up to itself. Returns [T, H*E]; padding rows are zero and so are their gradients. Scale
/// 1/sqrt(E). With `flash`, where the library's varlen kernels take q (flash_takes): those, no
/// score matrix. On the CPU sample by sample. Elsewhere padded_self_attention(), or, without
/// cu_seqlens, one masked softmax over T x T scores.
at::Tensor packed_self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const PackedSamples& samples, bool causal, bool flash);

/// The same by rows padded to `longest` and a mask, for devices whose numbers the host does not
/// read: no value of a tensor decides a shape. Needs cu_seqlens on the device of q.
at::Tensor padded_self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const PackedSamples& samples, bool causal);

/// The additive mask of the masked way, [1, 1, T, T]: 0 or kMasked. Padding rows see themselves
/// only.
at::Tensor packed_mask(const at::Tensor& segment_ids, bool causal, at::ScalarType dtype);

}  // namespace longship::nn
