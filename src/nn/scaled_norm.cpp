#include "nn/scaled_norm.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>

#include <optional>

#include "nn/tensor_math.h"

namespace longship::nn {

at::Tensor scaled_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  // Without a weight the library's norm ends with the rounding that has to come before the product.
  return at::rms_norm(x, {x.size(-1)}, std::nullopt, eps) * weight;
}

ScaledRmsNorm::ScaledRmsNorm(int64_t width, double eps) : eps_(eps) {
  register_parameter("weight", weight, {width});
}

}  // namespace longship::nn
