// Shape of augment_pictures without memory.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/augment_check.h"

namespace longship::ops {
namespace {

at::Tensor augment_meta(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                        int64_t width) {
  const AugmentShape shape = check_augment(pictures, params, height, width);
  return at::empty({shape.num_pictures, 3, height, width},
                   pictures.options().dtype(shape.out_type));
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("augment_pictures", augment_meta);
}

}  // namespace
}  // namespace longship::ops
