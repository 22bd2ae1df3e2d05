#pragma once
// Bicubic resampling with antialias of 8-bit RGB, and the sizes to which vision-language models
// bring pictures. Torch-free and thread-safe.

#include <cstdint>

#include "data/image/letterbox.h"
#include "data/sample.h"

namespace longship::data {

enum class BicubicFlavour {
  kPillow,   // Image.resize with BICUBIC, its default: 22 fraction bits (GR00T N1.6)
  kTorchU8,  // torch's uint8 bicubic with antialias: 16-bit weights (the Qwen-VL image processor)
};

/// Two passes, each rounded to 8 bits; a side that stays is left alone. Across first, except that
/// Pillow, from 13 on, goes down first where the height loses more than twice what the width loses
/// (which may be less than nothing); before 13 it never does. Throws DataError on a broken
/// picture, ShapeError on a size below 1.
Image resize_bicubic(const Image& image, int64_t height, int64_t width,
                     BicubicFlavour flavour = BicubicFlavour::kPillow);

/// How a processor chooses sizes.
struct SmartResize {
  int64_t factor = 28;               // sides become multiples of it
  int64_t min_pixels = 4 * 28 * 28;  // of the new size
  int64_t max_pixels = 4096 * 28 * 28;
  int64_t max_side = 0;  // 0: none. Set: the rule of GR00T N1.6's processor, else Qwen2-VL's
  double max_ratio = 200;

  /// Eagle's processor of GR00T N1.6.
  static SmartResize groot_n16() { return {28, 4 * 784, 4096 * 784, 7000, 200}; }
  /// Qwen3-VL's processor, of GR00T N1.7: 16-pixel patches in blocks of 2x2.
  static SmartResize qwen3_vl() { return {32, 65536, 16777216, 0, 200}; }
};

/// Each side to the nearest multiple of the factor (Python's round: halves to even); then, where
/// the area is too large or too small, both sides times one number, rounded down or up to
/// multiples. N1.6: at least one factor and at most max_side first, and "too large" is measured on
/// the rounded sides; Qwen2-VL: measured on the given ones, and at least one factor when shrinking.
/// Throws ShapeError on a size below 1, ConfigError on a factor below 1, DataError when one side is
/// more than max_ratio times the other, or when no multiple fits.
PictureSize smart_resize(int64_t height, int64_t width, const SmartResize& rule);

}  // namespace longship::data
