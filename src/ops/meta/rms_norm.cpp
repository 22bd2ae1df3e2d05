// Shapes of rms_norm without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/rms_norm_check.h"

namespace longship::ops {
namespace {

at::ScalarType acc_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_meta(const at::Tensor& x, const at::Tensor& scale,
                                                 const std::optional<at::Tensor>& shift,
                                                 double /*eps*/) {
  const RmsNormShape shape = check_rms_norm(x, scale, shift);
  return {at::empty_like(x), at::empty({shape.num_rows}, x.options().dtype(acc_type(x)))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_backward_meta(const at::Tensor& /*dy*/,
                                                                      const at::Tensor& x,
                                                                      const at::Tensor& scale,
                                                                      const at::Tensor& /*rstd*/,
                                                                      bool has_shift) {
  check_rms_norm(x, scale, std::nullopt);
  return {at::empty_like(x), at::empty_like(scale),
          has_shift ? at::empty_like(scale) : at::empty({0}, scale.options())};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("rms_norm", rms_norm_meta);
  m.impl("rms_norm_backward", rms_norm_backward_meta);
}

}  // namespace
}  // namespace longship::ops
