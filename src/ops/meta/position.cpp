// Shapes of rope_qkv, head_norm_rope, zero_tail_ and permute_rows without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "ops/position_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> rope_qkv_meta(
    const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
    const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
    const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes s = check_rope_tables("rope_qkv", cos, sin, positions, num_heads, num_kv_heads,
                                           head_dim, rows_valid);
  check_sizes("rope_qkv", {"qkv", qkv}, {s.num_rows, s.row_width()});
  return {at::empty({s.num_rows, num_heads, head_dim}, qkv.options()),
          at::empty({s.num_rows, num_kv_heads, head_dim}, qkv.options()),
          at::empty({s.num_rows, num_kv_heads, head_dim}, qkv.options())};
}

at::Tensor rope_qkv_backward_meta(const std::optional<at::Tensor>& dq,
                                  const std::optional<at::Tensor>& dk,
                                  const std::optional<at::Tensor>& dv, const at::Tensor& cos,
                                  const at::Tensor& sin, const at::Tensor& positions,
                                  int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                  const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes s = check_rope_tables("rope_qkv_backward", cos, sin, positions, num_heads,
                                           num_kv_heads, head_dim, rows_valid);
  const at::Tensor like = check_rope_gradients("rope_qkv_backward", s, dq, dk, dv);
  return at::empty({s.num_rows, s.row_width()}, like.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope_meta(
    const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
    const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads,
    double /*eps*/) {
  const RopeQkvSizes s = check_head_norm_rope("head_norm_rope", qkv, q_weight, k_weight, cos, sin,
                                              num_heads, num_kv_heads);
  return {at::empty({s.num_rows, num_heads, s.head_dim}, qkv.options()),
          at::empty({s.num_rows, num_kv_heads, s.head_dim}, qkv.options()), value_heads(qkv, s)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope_backward_meta(
    const std::optional<at::Tensor>& dq, const std::optional<at::Tensor>& dk,
    const std::optional<at::Tensor>& dv, const at::Tensor& qkv, const at::Tensor& q_weight,
    const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads,
    int64_t num_kv_heads, double /*eps*/) {
  constexpr const char* kOp = "head_norm_rope_backward";
  const RopeQkvSizes s =
      check_head_norm_rope(kOp, qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads);
  check_rope_gradients(kOp, s, dq, dk, dv);
  return {at::empty_like(qkv), at::empty_like(q_weight), at::empty_like(k_weight)};
}

void zero_tail_meta(const at::Tensor& x, const at::Tensor& rows_valid) {
  check_zero_tail(x, rows_valid);
}

at::Tensor gather_meta(const at::Tensor& x, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = index.size(0);
  return at::empty(sizes, x.options());
}

at::Tensor permute_rows_meta(const at::Tensor& x, const at::Tensor& index,
                             const at::Tensor& inverse) {
  check_permute_rows(x, index, inverse);
  return gather_meta(x, index);
}

at::Tensor permute_rows_backward_meta(const at::Tensor& dy, const at::Tensor& inverse) {
  check_gather_rows("permute_rows_backward", dy, inverse);
  return gather_meta(dy, inverse);
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("rope_qkv", rope_qkv_meta);
  m.impl("rope_qkv_backward", rope_qkv_backward_meta);
  m.impl("head_norm_rope", head_norm_rope_meta);
  m.impl("head_norm_rope_backward", head_norm_rope_backward_meta);
  m.impl("zero_tail_", zero_tail_meta);
  m.impl("permute_rows", permute_rows_meta);
  m.impl("permute_rows_backward", permute_rows_backward_meta);
}

}  // namespace
}  // namespace longship::ops
