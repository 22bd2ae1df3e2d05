// Shapes of dropout_mask and dropout without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/dropout_check.h"

namespace longship::ops {
namespace {

at::Tensor dropout_mask_meta(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                             at::ScalarType dtype) {
  check_dropout_mask("dropout_mask", keys, site, shape, p, dtype);
  return at::empty(shape, keys.options().dtype(dtype));
}

at::Tensor dropout_meta(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  check_dropout(x, keys, site, p);
  return at::empty_like(x);
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("dropout_mask", dropout_mask_meta);
  m.impl("dropout", dropout_meta);
}

}  // namespace
}  // namespace longship::ops
