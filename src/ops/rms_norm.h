#pragma once
// RMS normalisation with per-group scale and shift, as one dispatcher operator.

#include <ATen/core/Tensor.h>

#include <optional>

namespace longship::ops {

/// y = x * rstd * (1 + scale[g]) + shift[g], rstd = 1 / sqrt(mean(x^2) + eps); arithmetic in fp32
/// (fp64 for fp64 input), y rounded to the dtype of x. x [..., D] fp32, bf16 or fp64, contiguous; R
/// = numel / D rows. scale, shift [G, D] or [D], G divides R, row r uses group r / (R / G). A plain
/// Gemma norm is G = 1 with the stored weight as scale; adaRMS has one group per sample. Source:
/// openpi gemma RMSNorm (offset from one, epsilon inside the root). Differentiable in x, scale and
/// shift, once.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale,
                    const std::optional<at::Tensor>& shift, double eps);

}  // namespace longship::ops
