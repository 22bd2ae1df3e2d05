#pragma once
// Root-mean-square norms of the Gemma family.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// y = x / sqrt(mean(x^2) + eps) * (1 + weight), evaluated in fp32 (fp64 for fp64 input), returned
/// in the dtype of x. x [..., D], weight [D]: the stored weight is the offset from one. Source:
/// openpi models_pytorch gemma RMSNorm.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// y = x / sqrt(mean(x^2) + eps) * (1 + scale_b) + shift_b, same arithmetic. x [B, T, D]; scale,
/// shift [B, D], one row per sample. Source: openpi's adaRMS; no tanh or sigmoid anywhere.
at::Tensor ada_rms_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                        double eps);

}  // namespace longship::nn
