// Autograd of augment_pictures: none. Pictures are data.
#include <torch/library.h>

#include "ops/augment.h"
#include "ops/handle.h"

namespace longship::ops {
namespace {

at::Tensor call(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                int64_t width) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t)>(
          "longship::augment_pictures");
  return op.call(pictures, params, height, width);
}

at::Tensor augment_autograd(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                            int64_t width) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call(pictures, params, height, width);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("augment_pictures", augment_autograd);
}

}  // namespace

at::Tensor augment_pictures(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                            int64_t width) {
  return call(pictures.contiguous(), params.contiguous(), height, width);
}

}  // namespace longship::ops
