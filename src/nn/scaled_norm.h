#pragma once
// RMSNorm of the Llama and Qwen families: the stored weight is the whole factor (Gemma stores its
// offset from one, nn/norm.h).

#include <ATen/core/Tensor.h>

#include "nn/module.h"

namespace longship::nn {

/// y = round(x / sqrt(mean(x^2) + eps)) * weight over the last dimension: the quotient in fp32
/// (fp64 for fp64 input), rounded to the dtype of x BEFORE the product with weight. x [..., D],
/// weight [D]. Returns [..., D] in the wider dtype of x and weight, as that product has. Source:
/// transformers Qwen3RMSNorm.
at::Tensor scaled_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

class ScaledRmsNorm : public Module {
 public:
  ScaledRmsNorm(int64_t width, double eps);
  /// x [..., width] -> same shape, dtype as of scaled_rms_norm.
  at::Tensor forward(const at::Tensor& x) const { return scaled_rms_norm(x, weight, eps_); }

  at::Tensor weight;  // [width]

 private:
  double eps_;
};

}  // namespace longship::nn
