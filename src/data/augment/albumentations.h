#pragma once
// The picture chains of GR00T's processors, training and evaluation, with the 8-bit arithmetic of
// albumentations 1.4.18 and OpenCV 4.12. Evaluation is pinned by
// tests/golden/groot_preprocess/image_eval. Torch-free and thread-safe.

#include <array>
#include <cstdint>

#include "data/augment/picture.h"
#include "data/sample.h"

namespace longship::data {

/// Half-widths of the uniform factors: 1 -+ value, at least 0; hue: -+ value, in turns. All 0: no
/// change.
struct JitterRanges {
  double brightness = 0.3;
  double contrast = 0.4;
  double saturation = 0.5;
  double hue = 0.08;
};

struct AlbumentationsConfig {
  int64_t shortest_edge = 256;  // pixels of the shorter side, before and after the crop
  double crop_fraction = 0.95;  // of each side
  bool letterbox = true;        // pad to a black-framed square first
  JitterRanges jitter;          // training only

  /// Throws ConfigError naming field and value.
  void check() const;
};

/// One sample's random numbers. All its pictures get the same, as upstream replays the first one's.
struct AlbumentationsDraw {
  double crop_y = 0.5, crop_x = 0.5;  // [0, 1): place among the possible ones
  double brightness = 1, contrast = 1, saturation = 1, hue = 0;
  std::array<ColourOp, 4> order = {ColourOp::kBrightness, ColourOp::kContrast,
                                   ColourOp::kSaturation, ColourOp::kHue};
};

/// A pure function of (seed, step, sample id); the order is one of all 24, equally often.
AlbumentationsDraw draw_albumentations(const AlbumentationsConfig& config, const TrainDraw& draw,
                                       int64_t sample_id);

/// One operation of ColorJitter, in place. Throws DataError on a broken picture,
/// ConfigError on a factor beyond 100.
///   brightness: level * factor; contrast: level * factor + mean grey * (1 - factor); both fp32
///   tables, clipped and truncated. saturation: level * factor + grey * (1 - factor), rounded.
///   Grey is OpenCV's, rounded to 8 bits. hue: by 8-bit HSV, H of 0 .. 179 plus 180 * factor
///   modulo 180, truncated. A factor that changes nothing leaves the picture's bits alone.
/// OpenCV turns HSV back into RGB in blocks of 32 pixels of a row, where levels are truncated, and
/// a remainder, where they are rounded: so here.
void change_colour(Image& image, ColourOp op, double factor);

/// [letterbox,] smallest side to shortest_edge, crop, smallest side to shortest_edge, then the four
/// colour operations. Throws DataError on a broken picture.
Image train_picture(const Image& image, const AlbumentationsConfig& config,
                    const AlbumentationsDraw& draw);

/// The same with the crop in the middle and no colours.
Image eval_picture(const Image& image, const AlbumentationsConfig& config);

}  // namespace longship::data
