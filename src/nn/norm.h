#pragma once
// Norms of the Gemma and SigLIP families, alone and behind a residual connection.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// y = x / sqrt(mean(x^2) + eps) * (1 + weight), evaluated in fp32 (fp64 for fp64 input), returned
/// in the dtype of x. x [..., D], weight [D]: the stored weight is the offset from one. Source:
/// openpi models_pytorch gemma RMSNorm.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, bool fused = true);

/// y = x / sqrt(mean(x^2) + eps) * (1 + scale_b) + shift_b, same arithmetic. x [B, T, D]; scale,
/// shift [B, D], one row per sample. Source: openpi's adaRMS; no tanh or sigmoid anywhere.
at::Tensor ada_rms_norm(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                        double eps, bool fused = true);

/// The residual stream after a branch was added, and its norm: the input of the next branch.
struct Normed {
  at::Tensor h, y;
};

/// h' = h + branch * gate (gate [B, D] per sample, or undefined: plain addition), y = rms_norm(h')
/// with `scale` [D] and undefined shift (Gemma), or scale, shift [B, D] (adaRMS). h, branch
/// [..., D]. Fused: one pass over memory, one rounding of h'; else composed of library operators.
Normed add_rms_norm(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate,
                    const at::Tensor& scale, const at::Tensor& shift, double eps, bool fused);

/// h' = h + (branch + branch_bias), y = layer_norm(h'). branch_bias [D] or undefined. y has the
/// dtype of h. Same choice of `fused`.
Normed add_layer_norm(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& weight,
                      const at::Tensor& bias, double eps, bool fused);

/// LayerNorm over the last dimension, statistics in fp32. x [..., D] -> same shape and dtype.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps, bool fused);

/// h + branch * gate, or h + branch. h, branch [B, T, D], gate [B, D] or undefined.
at::Tensor add_branch(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate = {});

}  // namespace longship::nn
