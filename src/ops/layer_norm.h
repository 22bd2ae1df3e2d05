#pragma once
// Layer normalisation, alone or fused with the residual addition before it. Each function is one
// dispatcher operator with a backward operator of its own.

#include <ATen/core/Tensor.h>

#include <utility>

namespace longship::ops {

/// y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(mean((x - mean)^2) + eps); arithmetic in
/// fp32 (fp64 for fp64 input), the variance from deviations, y rounded to the dtype of x. x [...,
/// D] fp32, bf16 or fp64 (CPU only); weight, bias [D] fp32 or bf16 independently of x. Source:
/// torch LayerNorm over the last dimension. Differentiable in all tensors, once; gradients of
/// parameters in the parameter's dtype. Saved for backward: x, weight, mean, rstd. CUDA: async on
/// the current stream, deterministic.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);

/// (h_out, y): h_out = h + branch in fp32, rounded once to the dtype of h; y = layer_norm(h_out,
/// weight, bias, eps) of the rounded h_out. h, branch [..., D] of one dtype. Differentiable in all
/// tensors, once, through either or both outputs. Saved for backward: h_out, weight, mean, rstd.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& h, const at::Tensor& branch,
                                                 const at::Tensor& weight, const at::Tensor& bias,
                                                 double eps);

}  // namespace longship::ops
