#pragma once
// Norm of each head and rotary position embedding of fused query, key and value projections, as one
// dispatcher operator: rope_qkv.h for models that normalise their heads (Qwen3).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace longship::ops {

/// qkv [N, (H + 2G) E] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied: H query, G
/// key, G value heads in turn. q_weight, k_weight [E], contiguous or copied, fp32 or bf16
/// independently of qkv. cos, sin [N, E/2], contiguous or copied, fp32 or bf16 of one dtype (any
/// floating dtype on the CPU), no gradient. Returns q [N, H, E], k [N, G, E] in the dtype of qkv,
/// and v [N, G, E], which is a view of qkv (of its copy): nothing changes any of them in place.
/// Async on the current stream. n = x / sqrt(mean(x^2) + eps) * weight of every query and key head,
/// then the pairs (i, i + E/2): out1 = n1 cos - n2 sin, out2 = n2 cos + n1 sin; all in fp32, one
/// rounding, where two or three operators in bf16 round the quotient, the product and the terms of
/// the rotation too. Source: transformers Qwen3Attention. Differentiable once in qkv and the
/// weights, whichever of the results are used; the gradient of v is copied into that of qkv;
/// gradients of the weights sum unrounded fp32 values in a fixed order, in the dtype of the weight.
/// Saved for backward: the arguments; the root is computed again.
std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope(
    const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
    const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads,
    double eps);

}  // namespace longship::ops
