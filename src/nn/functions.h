#pragma once
// Differentiable pieces whose backward is cheaper written by hand than derived.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// Rotates the pairs (i, i + D/2) of the last dimension: out1 = x1 cos - x2 sin, out2 = x2 cos + x1
/// sin. x [..., D]; cos, sin broadcastable to [..., D/2], same dtype as x, no gradient. Returns the
/// shape of x, contiguous. The backward is the rotation by the opposite angle; nothing but cos and
/// sin is kept.
at::Tensor rotate_half(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

/// Rows of x [N, ...] in the order of `index` [M] int64 -> [M, ...]. index_select, with shapes on
/// the meta device too.
at::Tensor select_rows(const at::Tensor& x, const at::Tensor& index);

/// Packed rows to padded rows. x [N, ...]; `pad_index` [B*L] int64 says which packed row stands at
/// each padded place (any valid row at unused places: their content is arbitrary and must be masked
/// by the caller); `unpad_index` [N] is the place of every packed row. Returns [B*L, ...].
/// Gradients of unused places are dropped.
at::Tensor pad_rows(const at::Tensor& x, const at::Tensor& pad_index,
                    const at::Tensor& unpad_index);

/// The inverse: y [B*L, ...] -> [N, ...]. `unused` [B*L - N] int64 lists the unused places; their
/// gradient is zero.
at::Tensor unpad_rows(const at::Tensor& y, const at::Tensor& pad_index,
                      const at::Tensor& unpad_index, const at::Tensor& unused);

}  // namespace longship::nn
