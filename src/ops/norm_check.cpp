#include "ops/norm_check.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace longship::ops {
namespace {

std::string shape_text(const at::Tensor& t) {
  return fmt::format("[{}]", fmt::join(t.sizes(), ", "));
}

GroupedRows rows_of(const char* op, const at::Tensor& x) {
  LS_CHECK(x.dim() >= 1, ShapeError, "{}: x needs at least one dimension", op);
  LS_CHECK(x.is_contiguous(), ShapeError, "{}: x must be contiguous", op);
  GroupedRows rows;
  rows.width = x.size(-1);
  rows.num_rows = rows.width == 0 ? 0 : x.numel() / rows.width;
  return rows;
}

}  // namespace

GroupedRows check_grouped_rows(const char* op, const at::Tensor& x,
                               std::initializer_list<GroupedParam> params) {
  GroupedRows rows = rows_of(op, x);
  for (const GroupedParam& p : params) {
    if (!p.tensor.has_value()) continue;
    const at::Tensor& t = *p.tensor;
    LS_CHECK(t.dim() >= 1 && t.dim() <= 2 && t.size(-1) == rows.width, ShapeError,
             "{}: {} must be [D] or [G, D] with D = {}, got {}", op, p.name, rows.width,
             shape_text(t));
    LS_CHECK(t.device() == x.device(), ShapeError, "{}: {} is on {}, x on {}", op, p.name,
             t.device().str(), x.device().str());
    if (t.dim() == 2 && t.size(0) != 1) rows.num_groups = std::max(rows.num_groups, t.size(0));
  }
  for (const GroupedParam& p : params) {
    if (!p.tensor.has_value() || p.tensor->dim() == 1) continue;
    const int64_t groups = p.tensor->size(0);
    LS_CHECK(groups == 1 || groups == rows.num_groups, ShapeError,
             "{}: {} {} must have 1 or {} rows, as the other parameters", op, p.name,
             shape_text(*p.tensor), rows.num_groups);
    LS_CHECK(rows.num_rows % groups == 0, ShapeError,
             "{}: {} rows of x cannot be shared evenly by {} groups of {}", op, rows.num_rows,
             groups, p.name);
  }
  return rows;
}

void check_like(const char* op, const char* name, const at::Tensor& tensor, const at::Tensor& x) {
  LS_CHECK(tensor.sizes() == x.sizes() && tensor.scalar_type() == x.scalar_type(), ShapeError,
           "{}: {} must be {} {}, got {} {}", op, name, at::toString(x.scalar_type()),
           shape_text(x), at::toString(tensor.scalar_type()), shape_text(tensor));
  LS_CHECK(tensor.device() == x.device(), ShapeError, "{}: {} is on {}, x on {}", op, name,
           tensor.device().str(), x.device().str());
  LS_CHECK(tensor.is_contiguous(), ShapeError, "{}: {} must be contiguous", op, name);
}

GroupedRows check_rows(const char* op, const at::Tensor& x,
                       std::initializer_list<GroupedParam> params) {
  for (const GroupedParam& p : params) {
    LS_CHECK(!p.tensor.has_value() || p.tensor->dim() == 1, ShapeError,
             "{}: {} must be [D], got {}", op, p.name, shape_text(*p.tensor));
  }
  return check_grouped_rows(op, x, params);
}

at::ScalarType accumulate_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace longship::ops
