#include "nn/scaled_norm.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/rms_norm.h>

#include <optional>
#include <tuple>

#include "nn/tensor_math.h"
#include "ops/rms_norm.h"

namespace longship::nn {

at::Tensor scaled_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  // Without a weight the library's norm ends with the rounding that has to come before the product.
  return at::rms_norm(x, {x.size(-1)}, std::nullopt, eps) * weight;
}

ScaledRmsNorm::ScaledRmsNorm(int64_t width, double eps) : eps_(eps) {
  register_parameter("weight", weight, {width});
}

at::Tensor ScaledRmsNorm::forward(const at::Tensor& x, bool fused) const {
  if (fused) return ops::rms_norm(x, weight, std::nullopt, eps_, /*offset=*/0.0);
  return scaled_rms_norm(x, weight, eps_).to(x.scalar_type());
}

Normed ScaledRmsNorm::add(const at::Tensor& h, const at::Tensor& branch, bool fused) const {
  Normed out;
  if (fused) {
    std::tie(out.h, out.y) = ops::add_rms_norm(h, branch, std::nullopt, weight, std::nullopt, eps_,
                                               /*offset=*/0.0);
    return out;
  }
  out.h = h + branch;
  out.y = forward(out.h, fused);
  return out;
}

}  // namespace longship::nn
