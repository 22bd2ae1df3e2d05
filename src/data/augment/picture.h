#pragma once
// One picture's augmentation: drawn on the host as a pure function of (seed, step, sample id,
// camera, transform), applied on the host or, as a row of numbers, by ops::augment_pictures on the
// GPU. Torch-free and thread-safe.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "data/augment/config.h"
#include "data/sample.h"

namespace longship::data {

enum class ColourOp { kNone = 0, kBrightness = 1, kContrast = 2, kSaturation = 3, kHue = 4 };

/// What happens to a picture of one height and width. Positions are in pixels; pixel centres are
/// whole numbers.
///   Geometry: the frame's pixel (x, y) looks at q = place (x, y, 1) of the frame, which shows the
///   part [crop_x, crop_x + crop_w) x [crop_y, crop_y + crop_h) of the picture: p = crop + (q +
///   1/2) crop_w / width - 1/2, kept between the part's outermost pixel centres. Bilinear: the
///   colour at p, fading to black over one pixel where q leaves the frame (as zero padding does).
///   Nearest: black where q rounds to no pixel of the frame, else the pixel nearest to p.
///   Colours: on [0, 1], the operations in order. torchvision: grey = 0.2989 R + 0.587 G + 0.114 B,
///   clamped to [0, 1] after each. openpi: grey is the mean of the channels, clamped once at the
///   end (and before hue). Contrast is about the mean grey of the picture as it is then.
///   Sharpness: blend of the picture with its 3x3 blur [1 1 1; 1 5 1; 1 1 1] / 13, whose outermost
///   pixels stay; none below 3x3.
/// Geometry comes first, or last, when geometry_last is set; then black is not coloured.
struct PictureAugment {
  std::array<float, 6> place = {1, 0, 0, 0, 1, 0};  // q = [p0 p1 p2; p3 p4 p5] (x, y, 1)
  float crop_x = 0, crop_y = 0, crop_w = 0, crop_h = 0;
  bool geometry_last = false;
  bool nearest = false;
  bool openpi_colour = false;
  std::array<ColourOp, 4> ops = {};
  std::array<float, 4> factors = {1, 1, 1, 1};
  float sharpness = 1;

  /// Nothing is changed at all: such pictures keep their bits.
  bool identity(int64_t height, int64_t width) const;
  bool moves(int64_t height, int64_t width) const;
  bool colours() const { return ops[0] != ColourOp::kNone || sharpness != 1.0F; }
};

/// Draws of `config` (resolved) for a picture. `slot` and `camera` are the model's and the
/// dataset's name of the camera: either may fit AugmentTransform::except; `slot` keys the draws.
/// Numbers of one transform do not depend on which others there are, except through max_transforms.
PictureAugment draw_augment(const AugmentConfig& config, const TrainDraw& draw, int64_t sample_id,
                            std::string_view slot, std::string_view camera, int64_t height,
                            int64_t width);

/// Numbers per picture in the GPU's table of parameters, [pictures, kAugmentNumbers] fp32: place
/// (6), crop (4), flags (1 geometry_last, 2 nearest, 4 openpi_colour), operations (4), factors (4),
/// sharpness.
inline constexpr int64_t kAugmentNumbers = 20;
void write_augment(const PictureAugment& augment, std::span<float> row);

/// In place on picture [3, height, width] fp32 in [-1, 1], contiguous. Allocates one picture when
/// something moves or is sharpened. Same numbers as ops::augment_pictures to 2e-6 (bilinear) where
/// the order of sums differs.
void apply_augment(const PictureAugment& augment, std::span<float> picture, int64_t height,
                   int64_t width);

}  // namespace longship::data
