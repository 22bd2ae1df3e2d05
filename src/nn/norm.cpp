#include "nn/norm.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rsqrt.h>

#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

at::Tensor normalise(const at::Tensor& x, double eps) {
  return x * at::rsqrt(at::mean(x * x, {-1}, /*keepdim=*/true) + eps);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return (normalise(wide(x), eps) * (1 + wide(weight))).to(x.scalar_type());
}

at::Tensor ada_rms_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                        double eps) {
  const at::Tensor y = normalise(wide(x), eps);
  return (y * (1 + wide(scale).unsqueeze(1)) + wide(shift).unsqueeze(1)).to(x.scalar_type());
}

}  // namespace longship::nn
