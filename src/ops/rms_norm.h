#pragma once
// RMS normalisation with per-group scale and shift, alone or fused with the residual addition
// before it. Each function is one dispatcher operator with a backward operator of its own.

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace longship::ops {

/// y = x * rstd * (offset + scale[g]) + shift[g], rstd = 1 / sqrt(mean(x^2) + eps); arithmetic in
/// fp32 (fp64 for fp64 input), y rounded to the dtype of x. x [..., D] fp32, bf16 or fp64 (CPU
/// only); R = numel / D rows. scale, shift [G, D] or [D], fp32 or bf16 independently of x, G
/// divides R, row r uses group r / (R / G). Rows of parameters may be strided (no copy where
/// stride(-1) is 1). A plain Gemma norm is G = 1 with the stored weight as scale, a Llama or Qwen
/// one the same with offset 0 (their weight is the whole factor); adaRMS has one group per sample.
/// Source: openpi gemma RMSNorm (offset from one, epsilon inside the root). Differentiable in x,
/// scale and shift, once; gradients of parameters are contiguous, in the parameter's dtype. Saved
/// for backward: x, scale, shift (its shape), rstd. CUDA: async on the current stream,
/// deterministic.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale,
                    const std::optional<at::Tensor>& shift, double eps, double offset = 1.0);

/// (h_out, y): h_out = h + branch * gate[g] in fp32, rounded once to the dtype of h (plain addition
/// without a gate); y = rms_norm(h_out, scale, shift, eps, offset) of the rounded h_out. h, branch
/// [..., D] of one dtype; gate, scale, shift [G, D] or [D], each fp32 or bf16, [D] meaning one row
/// for all groups. Source: openpi gemma, gated residual `x + y * gate` followed by the next
/// RMSNorm. Differentiable in all tensors, once, through either or both outputs. Saved for
/// backward: h_out, scale, shift (its shape), rstd, and with a gate branch and gate.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& h, const at::Tensor& branch,
                                               const std::optional<at::Tensor>& gate,
                                               const at::Tensor& scale,
                                               const std::optional<at::Tensor>& shift, double eps,
                                               double offset = 1.0);

/// h + branch * gate[g], the addition of add_rms_norm where no norm follows. Saved for backward:
/// with a gate branch and gate, else nothing.
at::Tensor add_gate(const at::Tensor& h, const at::Tensor& branch,
                    const std::optional<at::Tensor>& gate);

}  // namespace longship::ops
