// Shapes of embedding_rows without memory.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "ops/embedding_rows_check.h"

namespace longship::ops {
namespace {

at::Tensor embedding_rows_meta(const at::Tensor& weight, const at::Tensor& ids, double /*scale*/,
                               int64_t /*pad_id*/, const std::optional<at::Tensor>& /*grad_rows*/,
                               const std::optional<at::Tensor>& /*row_flags*/) {
  check_embedding_rows(weight, ids);
  return at::empty({ids.size(0), weight.size(1)}, weight.options());
}

void embedding_rows_backward_meta(const at::Tensor& dy, const at::Tensor& ids, double /*scale*/,
                                  int64_t /*pad_id*/, const at::Tensor& grad_rows,
                                  const at::Tensor& row_flags) {
  check_embedding_rows_backward(dy, ids, grad_rows, row_flags);
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("embedding_rows", embedding_rows_meta);
  m.impl("embedding_rows_backward", embedding_rows_backward_meta);
}

}  // namespace
}  // namespace longship::ops
