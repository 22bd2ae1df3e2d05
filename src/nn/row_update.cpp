#include "nn/row_update.h"

#include <ATen/ops/index_add.h>
#include <ATen/ops/index_copy.h>

#include "base/error.h"

namespace longship::nn {
namespace {

void check(const at::Tensor& h, const at::Tensor& index, const at::Tensor& rows) {
  LS_CHECK(index.dim() == 1 && index.scalar_type() == at::kLong, ShapeError,
           "rows of a packed stream: the index must be int64 [M], has {} dimensions", index.dim());
  LS_CHECK(
      h.dim() == 2 && rows.dim() == 2 && rows.size(1) == h.size(1) && rows.size(0) == index.size(0),
      ShapeError,
      "rows of a packed stream: {} rows of width {} for {} places in a stream of width {}",
      rows.size(0), rows.size(-1), index.size(0), h.size(-1));
}

}  // namespace

at::Tensor replace_rows(const at::Tensor& h, const at::Tensor& index, const at::Tensor& rows) {
  check(h, index, rows);
  return at::index_copy(h, 0, index, rows.to(h.scalar_type()));
}

at::Tensor add_rows(const at::Tensor& h, const at::Tensor& index, const at::Tensor& rows) {
  check(h, index, rows);
  return at::index_add(h, 0, index, rows.to(h.scalar_type()));
}

}  // namespace longship::nn
