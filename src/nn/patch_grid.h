#pragma once
// Host-side tables of pictures that are cut into patches, in the order of a tower that merges
// blocks of patches: rows of a picture lie behind each other by block row, block column, row in the
// block, column in the block.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace longship::nn {

/// {rows, columns} of patches -> {rows, columns} of merged tokens. Throws DataError naming
/// `picture` unless both are positive multiples of `merge`.
std::array<int64_t, 2> merged_grid(const std::array<int64_t, 2>& grid, int64_t merge,
                                   size_t picture);

/// Of P patches of all pictures behind each other.
struct PatchTables {
  at::Tensor rows, columns;    // [P] int64: place of a patch in its picture
  at::Tensor position_index;   // [P, 4] int64: rows of the position table, a row of the table being
                               // y * side + x; corners (y, x), (y, x'), (y', x), (y', x')
  at::Tensor position_weight;  // [P, 4] fp32, sum 1
};

/// Bilinear places of every patch in a square table of side * side positions whose corners are the
/// picture's corners. grids[v] = {rows, columns} of patches of picture v. Source: transformers
/// Qwen3VLVisionModel.fast_pos_embed_interpolate and rot_pos_emb. Throws DataError.
PatchTables patch_tables(std::span<const std::array<int64_t, 2>> grids, int64_t side,
                         int64_t merge);

}  // namespace longship::nn
