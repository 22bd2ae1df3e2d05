#include "ops/embedding_rows_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

void check_table(const char* op, const NamedTensor& table, const at::Tensor& ids) {
  LS_CHECK(table.tensor.dim() == 2, ShapeError, "{}: {} must be [V, D], got [{}]", op, table.name,
           fmt::join(table.tensor.sizes(), ", "));
  LS_CHECK(ids.dim() == 1, ShapeError, "{}: ids must be [T], got [{}]", op,
           fmt::join(ids.sizes(), ", "));
  check_dtype(op, {"ids", ids}, at::kLong);
  check_contiguous(op, {table, {"ids", ids}});
  check_devices(op, {table, {"ids", ids}});
}

}  // namespace

void check_embedding_rows(const at::Tensor& weight, const at::Tensor& ids) {
  check_table("embedding_rows", {"weight", weight}, ids);
}

void check_embedding_rows_backward(const at::Tensor& dy, const at::Tensor& ids,
                                   const at::Tensor& grad_rows, const at::Tensor& row_flags) {
  constexpr const char* kOp = "embedding_rows_backward";
  check_table(kOp, {"grad_rows", grad_rows}, ids);
  check_sizes(kOp, {"dy", dy}, {ids.size(0), grad_rows.size(1)});
  check_sizes(kOp, {"row_flags", row_flags}, {grad_rows.size(0)});
  check_dtype(kOp, {"row_flags", row_flags}, at::kByte);
  check_contiguous(kOp, {{"dy", dy}, {"row_flags", row_flags}});
  check_devices(kOp, {{"grad_rows", grad_rows}, {"dy", dy}, {"row_flags", row_flags}});
}

}  // namespace longship::ops
