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

at::Tensor check_rope_gradients(const RopeQkvSizes& sizes, const std::optional<at::Tensor>& dq,
                                const std::optional<at::Tensor>& dk,
                                const std::optional<at::Tensor>& dv) {
  constexpr const char* kOp = "rope_qkv_backward";
  at::Tensor first;
  const auto check = [&](const char* name, const std::optional<at::Tensor>& gradient,
                         int64_t heads) {
    if (!gradient.has_value()) return;
    check_sizes(kOp, {name, *gradient}, {sizes.num_rows, heads, sizes.head_dim});
    if (!first.defined()) first = *gradient;
    check_dtype(kOp, {name, *gradient}, first.scalar_type());
    check_devices(kOp, {{"the first gradient", first}, {name, *gradient}});
  };
  check("dq", dq, sizes.num_heads);
  check("dk", dk, sizes.num_kv_heads);
  check("dv", dv, sizes.num_kv_heads);
  LS_CHECK(first.defined(), ShapeError, "{}: none of dq, dk and dv is given", kOp);
  return first;
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
