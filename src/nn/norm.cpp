#include "nn/norm.h"

#include "ops/rms_norm.h"

namespace longship::nn {
namespace {

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return ops::rms_norm(x, wide(weight), std::nullopt, eps);
}

at::Tensor ada_rms_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                        double eps) {
  return ops::rms_norm(x, wide(scale).contiguous(), wide(shift).contiguous(), eps);
}

}  // namespace longship::nn
