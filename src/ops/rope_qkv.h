#pragma once
// Rotary position embedding of fused query, key and value projections as one dispatcher operator.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace longship::ops {

/// qkv [N, (H + 2G) E] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied: H query, G
/// key, G value heads in turn. cos, sin [P, E/2] fp32 (any floating dtype on the CPU). positions
/// [N] int32, every value in [0, P): checked on the CPU, not on CUDA. Returns q [N, H, E], k and v
/// [N, G, E] in the dtype of qkv. H may be 0 (keys and values only; q has no heads). Async on the
/// current stream. Pairs (i, i + E/2) of queries and keys: out1 = x1 cos - x2 sin, out2 = x2 cos +
/// x1 sin in fp32, one rounding; values are copied. Source: openpi gemma _apply_rope. rows_valid
/// [1] int32 on the device: rows at and past it come out as zero; neither they nor their positions
/// are read, nor their gradients in backward, where they get zero. Differentiable once in qkv,
/// whichever of the results are used; saved for backward: cos, sin, positions, rows_valid.
std::tuple<at::Tensor, at::Tensor, at::Tensor> rope_qkv(
    const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
    const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
    const std::optional<at::Tensor>& rows_valid = std::nullopt);

}  // namespace longship::ops
