#include "ops/position_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {

RopeQkvSizes check_rope_tables(const char* op, const at::Tensor& cos, const at::Tensor& sin,
                               const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads,
                               int64_t head_dim, const std::optional<at::Tensor>& rows_valid) {
  LS_CHECK(num_heads >= 0 && num_kv_heads >= 0 && head_dim >= 0 && head_dim % 2 == 0, ShapeError,
           "{}: {} query heads, {} key heads of dimension {}: counts must not be negative and the "
           "dimension must be even",
           op, num_heads, num_kv_heads, head_dim);
  LS_CHECK(positions.dim() == 1, ShapeError, "{}: positions must be [N], got [{}]", op,
           fmt::join(positions.sizes(), ", "));
  check_dtype(op, {"positions", positions}, at::kInt);
  LS_CHECK(cos.dim() == 2, ShapeError, "{}: cos must be [P, E/2], got [{}]", op,
           fmt::join(cos.sizes(), ", "));
  check_sizes(op, {"cos", cos}, {cos.size(0), head_dim / 2});
  check_sizes(op, {"sin", sin}, cos.sizes());
  check_contiguous(op, {{"cos", cos}, {"sin", sin}, {"positions", positions}});
  if (rows_valid.has_value()) check_rows_valid(op, *rows_valid);
  return {positions.size(0), num_heads, num_kv_heads, head_dim};
}

at::Tensor check_rope_gradients(const char* op, const RopeQkvSizes& sizes,
                                const std::optional<at::Tensor>& dq,
                                const std::optional<at::Tensor>& dk,
                                const std::optional<at::Tensor>& dv) {
  at::Tensor first;
  const auto check = [&](const char* name, const std::optional<at::Tensor>& gradient,
                         int64_t heads) {
    if (!gradient.has_value()) return;
    check_sizes(op, {name, *gradient}, {sizes.num_rows, heads, sizes.head_dim});
    if (!first.defined()) first = *gradient;
    check_dtype(op, {name, *gradient}, first.scalar_type());
    check_devices(op, {{"the first gradient", first}, {name, *gradient}});
  };
  check("dq", dq, sizes.num_heads);
  check("dk", dk, sizes.num_kv_heads);
  check("dv", dv, sizes.num_kv_heads);
  LS_CHECK(first.defined(), ShapeError, "{}: none of dq, dk and dv is given", op);
  return first;
}

RopeQkvSizes check_head_norm_rope(const char* op, const at::Tensor& qkv, const at::Tensor& q_weight,
                                  const at::Tensor& k_weight, const at::Tensor& cos,
                                  const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads) {
  LS_CHECK(q_weight.dim() == 1 && q_weight.size(0) % 2 == 0 && num_heads >= 0 && num_kv_heads >= 0,
           ShapeError,
           "{}: {} query heads, {} key heads, q_weight [{}]: counts must not be negative and the "
           "weight must be [E] with E even",
           op, num_heads, num_kv_heads, fmt::join(q_weight.sizes(), ", "));
  LS_CHECK(qkv.dim() == 2, ShapeError, "{}: qkv must be [N, (H + 2G) E], got [{}]", op,
           fmt::join(qkv.sizes(), ", "));
  const RopeQkvSizes sizes{qkv.size(0), num_heads, num_kv_heads, q_weight.size(0)};
  check_sizes(op, {"qkv", qkv}, {sizes.num_rows, sizes.row_width()});
  check_sizes(op, {"k_weight", k_weight}, q_weight.sizes());
  check_sizes(op, {"cos", cos}, {sizes.num_rows, sizes.head_dim / 2});
  check_sizes(op, {"sin", sin}, cos.sizes());
  check_dtype(op, {"sin", sin}, cos.scalar_type());
  check_devices(
      op,
      {{"qkv", qkv}, {"q_weight", q_weight}, {"k_weight", k_weight}, {"cos", cos}, {"sin", sin}});
  check_contiguous(
      op,
      {{"qkv", qkv}, {"q_weight", q_weight}, {"k_weight", k_weight}, {"cos", cos}, {"sin", sin}});
  return sizes;
}

at::Tensor value_heads(const at::Tensor& qkv, const RopeQkvSizes& s) {
  const int64_t first = (s.num_heads + s.num_kv_heads) * s.head_dim;
  return qkv.narrow(1, first, s.num_kv_heads * s.head_dim)
      .view({s.num_rows, s.num_kv_heads, s.head_dim});
}

void check_zero_tail(const at::Tensor& x, const at::Tensor& rows_valid) {
  LS_CHECK(x.dim() >= 1, ShapeError, "zero_tail_: x needs at least one dimension");
  check_contiguous("zero_tail_", {{"x", x}});
  check_rows_valid("zero_tail_", rows_valid);
  check_devices("zero_tail_", {{"x", x}, {"rows_valid", rows_valid}});
}

void check_gather_rows(const char* op, const at::Tensor& x, const at::Tensor& index) {
  LS_CHECK(x.dim() >= 1, ShapeError, "{}: x needs at least one dimension", op);
  LS_CHECK(index.dim() == 1, ShapeError, "{}: the index must be one-dimensional, got [{}]", op,
           fmt::join(index.sizes(), ", "));
  check_dtype(op, {"index", index}, at::kLong);
  check_contiguous(op, {{"x", x}, {"index", index}});
  check_devices(op, {{"x", x}, {"index", index}});
}

void check_permute_rows(const at::Tensor& x, const at::Tensor& index, const at::Tensor& inverse) {
  check_gather_rows("permute_rows", x, index);
  check_dtype("permute_rows", {"inverse", inverse}, at::kLong);
  check_sizes("permute_rows", {"inverse", inverse}, {x.size(0)});
}

}  // namespace longship::ops
