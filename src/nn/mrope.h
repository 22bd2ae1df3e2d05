#pragma once
// Rotary positions with three axes (time, row, column), as Qwen3-VL gives them to text tokens and
// pictures.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <span>

#include "nn/rope.h"

namespace longship::nn {

/// 1 / theta^(2i / dim), [dim / 2] in `dtype` (fp32 or fp64), in the order of operations of the
/// torch references.
at::Tensor inverse_frequencies(int64_t dim, double theta, const at::TensorOptions& options);

/// The table of cos and sin of packed rows, [N, 1, head_dim / 2]. positions [3, N] int64 (planes
/// time, row, column), or [1, N] where all axes agree. Frequency k turns with the row if k % 3 == 1
/// and k < 3 * sections[1], with the column if k % 3 == 2 and k < 3 * sections[2], else with the
/// time; sections of zeros give the plain rotary embedding. Angles in fp32 (fp64 when `dtype` is),
/// then rounded to `dtype`. Only device operations. Source: transformers
/// Qwen3VLTextRotaryEmbedding, apply_interleaved_mrope. Throws ShapeError.
RopeTable mrope_table(const at::Tensor& positions, int64_t head_dim, double theta,
                      const std::array<int64_t, 3>& sections, at::ScalarType dtype);

/// Positions [3, N] int64 of packed samples, on the host. token_ids [N] int64 on the host: sample
/// behind sample, lengths[b] tokens each; rows behind the last sample get position 1, as padding
/// has in the reference. Within a sample all axes count up along text. A picture is (rows / merge)
/// * (columns / merge) tokens `image_token` in a row, grids[v] = its {rows, columns} of patches in
/// the order of the tokens; its time stands still at the count s that it begins with, rows and
/// columns are s + place in the merged grid, and the count goes on at their maximum + 1. Source:
/// transformers Qwen3VLModel.get_rope_index. Throws DataError naming sample and token when pictures
/// and image tokens do not fit, ShapeError for lengths that do not.
at::Tensor mrope_positions(const at::Tensor& token_ids, std::span<const int64_t> lengths,
                           int64_t image_token, std::span<const std::array<int64_t, 2>> grids,
                           int64_t merge);

}  // namespace longship::nn
