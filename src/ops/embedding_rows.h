#pragma once
// Rows of an embedding table as one dispatcher operator, with a gradient that touches only the rows
// that were used.

#include <ATen/core/Tensor.h>

#include <optional>

namespace longship::ops {

/// weight [V, D] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous; ids [T] int64 below V
/// (checked on the CPU; CUDA gives rows of NaN for others). Returns weight[ids] * scale [T, D] in
/// the dtype of weight: product in fp32, rounded once; zero rows for negative ids. Async on the
/// current stream. Source: openpi gemma Embedder.encode (scale sqrt(D)).
///
/// The gradient does not go through autograd to `weight`, which would need all V rows: backward
/// ADDS scale * (sum of dy over the places of an id) to grad_rows[id] (grad_rows [V, D] fp32 or
/// bf16, contiguous, the caller's, read and written when backward runs) and sets row_flags[id]
/// (row_flags [V] uint8, the caller's) to 1, for every id but pad_id and negative ones; weight's
/// own gradient stays undefined. Both must be given where weight requires grad and gradients are
/// recorded, and may be absent otherwise. Deterministic: fp32 sums in a fixed order, added once.
/// Saved for backward: ids, and references to grad_rows and row_flags.
at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids, double scale,
                          int64_t pad_id, const std::optional<at::Tensor>& grad_rows,
                          const std::optional<at::Tensor>& row_flags);

}  // namespace longship::ops
