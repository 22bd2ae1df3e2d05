#pragma once
// RMSNorm of the Llama and Qwen families: the stored weight is the whole factor (Gemma stores its
// offset from one, nn/norm.h).

#include <ATen/core/Tensor.h>

#include "nn/module.h"
#include "nn/norm.h"

namespace longship::nn {

/// y = round(x / sqrt(mean(x^2) + eps)) * weight over the last dimension: the quotient in fp32
/// (fp64 for fp64 input), rounded to the dtype of x BEFORE the product with weight. x [..., D],
/// weight [D]. Returns [..., D] in the wider dtype of x and weight, as that product has. Source:
/// transformers Qwen3RMSNorm.
at::Tensor scaled_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

class ScaledRmsNorm : public Module {
 public:
  ScaledRmsNorm(int64_t width, double eps);
  /// x [..., width] -> scaled_rms_norm in the dtype of x. Fused: one pass over memory, and the
  /// quotient is not rounded.
  at::Tensor forward(const at::Tensor& x, bool fused) const;
  /// h' = h + branch and y = forward(h'); h, branch [..., width] of one dtype. Fused: one pass.
  Normed add(const at::Tensor& h, const at::Tensor& branch, bool fused) const;
  double eps() const { return eps_; }

  at::Tensor weight;  // [width]

 private:
  double eps_;
};

}  // namespace longship::nn
