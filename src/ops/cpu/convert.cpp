#include "ops/convert.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "ops/convert_internal.h"

namespace longship::ops {
namespace {

bool is_float(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16;
}

}  // namespace

void convert_into(const at::Tensor& target, const at::Tensor& source, bool add) {
  const bool flat = source.is_contiguous() && target.numel() == source.numel();
  LS_CHECK(is_float(target) && is_float(source) && target.is_contiguous() &&
               (flat || target.sizes() == source.sizes()) && target.device() == source.device(),
           ShapeError,
           "convert_into: {} elements of {} from {} of {}; contiguous fp32 or bf16 of one size on "
           "one device",
           target.numel(), c10::toString(target.scalar_type()), source.numel(),
           c10::toString(source.scalar_type()));
  const at::NoGradGuard no_grad;
  if (flat && target.is_cuda() && target.scalar_type() == at::kFloat &&
      source.scalar_type() == at::kBFloat16) {
    return convert_into_device(target, source, add);
  }
  const at::Tensor values = flat ? source.view(target.sizes()) : source;
  if (add) {
    at::Tensor(target).add_(values);
  } else {
    target.copy_(values);
  }
}

#ifndef LS_OPS_CUDA
void convert_into_device(const at::Tensor& target, const at::Tensor&, bool) {
  throw DeviceError(
      fmt::format("convert_into: no implementation for device {}", target.device().str()));
}
#endif

}  // namespace longship::ops
