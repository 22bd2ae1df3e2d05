#pragma once
// Argument checks shared by the implementations of rope_qkv, head_norm_rope, zero_tail_ and
// permute_rows. They throw ShapeError naming the operator, the argument, and the expected and given
// shapes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace longship::ops {

/// The sizes of rope_qkv, whose N comes from positions, and of head_norm_rope.
struct RopeQkvSizes {
  int64_t num_rows = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t row_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
};

/// Tables, positions and counts.
RopeQkvSizes check_rope_tables(const char* op, const at::Tensor& cos, const at::Tensor& sin,
                               const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads,
                               int64_t head_dim, const std::optional<at::Tensor>& rows_valid);

/// The first of dq, dk, dv that is there; the others must fit it and the sizes. Throws if none is.
at::Tensor check_rope_gradients(const char* op, const RopeQkvSizes& sizes,
                                const std::optional<at::Tensor>& dq,
                                const std::optional<at::Tensor>& dk,
                                const std::optional<at::Tensor>& dv);

/// All arguments of head_norm_rope; E comes from q_weight.
RopeQkvSizes check_head_norm_rope(const char* op, const at::Tensor& qkv, const at::Tensor& q_weight,
                                  const at::Tensor& k_weight, const at::Tensor& cos,
                                  const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads);

/// The last G heads of qkv, as a view.
at::Tensor value_heads(const at::Tensor& qkv, const RopeQkvSizes& sizes);

void check_zero_tail(const at::Tensor& x, const at::Tensor& rows_valid);

/// x [N, ...] contiguous, index [M] int64.
void check_gather_rows(const char* op, const at::Tensor& x, const at::Tensor& index);
void check_permute_rows(const at::Tensor& x, const at::Tensor& index, const at::Tensor& inverse);

}  // namespace longship::ops
