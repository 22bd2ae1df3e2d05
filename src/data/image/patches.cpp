#include "data/image/patches.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "data/image/letterbox.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;

using Levels = std::array<float, 256>;

const Levels& normalized_levels() {
  static const Levels table = [] {
    Levels t{};
    for (size_t i = 0; i < t.size(); ++i) t[i] = (static_cast<float>(i) - 127.5F) / 127.5F;
    return t;
  }();
  return table;
}

void check_room(size_t numbers, int64_t rows, int64_t columns) {
  LS_CHECK(static_cast<int64_t>(numbers) == rows * columns, ShapeError,
           "room for {} numbers, but the picture makes {} rows of {}", numbers, rows, columns);
}

}  // namespace

void normalize_chw(const Image& image, std::span<float> out) {
  check_picture(image);
  const int64_t plane = image.height * image.width;
  check_room(out.size(), kChannels, plane);
  const Levels& table = normalized_levels();
  const uint8_t* in = image.rgb.data();
  for (int64_t i = 0; i < plane; ++i, in += kChannels) {
    for (int64_t c = 0; c < kChannels; ++c) out[static_cast<size_t>(c * plane + i)] = table[in[c]];
  }
}

PatchGrid patch_grid(int64_t height, int64_t width, int64_t patch, int64_t merge) {
  LS_CHECK(patch > 0 && merge > 0, ShapeError,
           "patches of {} pixels in blocks of {}: both must be "
           "at least 1",
           patch, merge);
  const int64_t step = patch * merge;
  LS_CHECK(height > 0 && width > 0 && height % step == 0 && width % step == 0, ShapeError,
           "a picture of {}x{} (height x width) is not cut evenly into {}x{} patches of {} pixels: "
           "resize it to multiples of {} first",
           height, width, merge, merge, patch, step);
  return {height / patch, width / patch};
}

void raster_patches(const Image& image, int64_t patch, int64_t merge, std::span<float> out) {
  check_picture(image);
  const PatchGrid grid = patch_grid(image.height, image.width, patch, merge);
  check_room(out.size(), grid.count(), patch * patch * kChannels);
  const Levels& table = normalized_levels();
  const int64_t run = patch * kChannels;  // bytes of a patch in one line of the picture
  const uint8_t* in = image.rgb.data();
  for (int64_t y = 0; y < image.height; ++y) {
    float* line = out.data() + (y / patch * grid.columns * patch + y % patch) * run;
    for (int64_t x = 0; x < grid.columns; ++x, in += run, line += patch * run) {
      for (int64_t i = 0; i < run; ++i) line[i] = table[in[i]];
    }
  }
}

void merge_block_patches(const Image& image, int64_t patch, int64_t merge, int64_t frames,
                         std::span<float> out) {
  check_picture(image);
  LS_CHECK(frames > 0, ShapeError, "{} frames of a picture: at least 1", frames);
  const PatchGrid grid = patch_grid(image.height, image.width, patch, merge);
  const int64_t square = patch * patch;
  const int64_t row = kChannels * frames * square;
  check_room(out.size(), grid.count(), row);
  const Levels& table = normalized_levels();
  const int64_t blocks = grid.columns / merge;
  for (int64_t gy = 0; gy < grid.rows; ++gy) {
    for (int64_t gx = 0; gx < grid.columns; ++gx) {
      const int64_t block = gy / merge * blocks + gx / merge;
      const int64_t index = (block * merge + gy % merge) * merge + gx % merge;
      float* dst = out.data() + index * row;
      for (int64_t y = 0; y < patch; ++y) {
        const uint8_t* src =
            image.rgb.data() + ((gy * patch + y) * image.width + gx * patch) * kChannels;
        for (int64_t x = 0; x < patch; ++x, src += kChannels) {
          for (int64_t c = 0; c < kChannels; ++c)
            dst[c * frames * square + y * patch + x] = table[src[c]];
        }
      }
      for (int64_t c = 0; c < kChannels; ++c) {
        const float* first = dst + c * frames * square;
        for (int64_t t = 1; t < frames; ++t)
          std::copy(first, first + square, dst + (c * frames + t) * square);
      }
    }
  }
}

}  // namespace longship::data
