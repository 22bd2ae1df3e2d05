#pragma once
// Pictures as a vision tower reads them: levels in [-1, 1], whole or cut into rows of patches.
// Torch-free and thread-safe.

#include <cstdint>
#include <span>

#include "data/sample.h"

namespace longship::data {

/// (level / 255 - 1/2) / (1/2) as transformers' fast image processors compute it: (level - 127.5) /
/// 127.5 in fp32; out [3, height, width]. Throws DataError on a broken
/// picture, ShapeError when `out` has another size.
void normalize_chw(const Image& image, std::span<float> out);

struct PatchGrid {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t count() const { return rows * columns; }
};
/// Patches of patch x patch pixels, of which merge x merge become one token. Throws ShapeError,
/// naming the size, when a side is no multiple of patch * merge.
PatchGrid patch_grid(int64_t height, int64_t width, int64_t patch, int64_t merge);

/// SigLIP rows (GR00T N1.6: patch 14, merge 2): out [rows * columns, patch * patch * 3] fp32,
/// normalised; patches in raster order, values in order (y, x, channel).
void raster_patches(const Image& image, int64_t patch, int64_t merge, std::span<float> out);

/// Qwen-VL rows (GR00T N1.7: patch 16, merge 2, 2 frames): out [rows * columns, 3 * frames * patch
/// * patch] fp32, normalised; patches in blocks of merge x merge, block by block in raster order
/// and in raster order within; values in order (channel, frame, y, x), the picture once per frame.
void merge_block_patches(const Image& image, int64_t patch, int64_t merge, int64_t frames,
                         std::span<float> out);

}  // namespace longship::data
