#pragma once
// Geometry of pictures without resampling: padding to a square and crops. Torch-free.

#include <cstdint>

#include "data/sample.h"

namespace longship::data {

struct PictureSize {
  int64_t height = 0;
  int64_t width = 0;
  bool operator==(const PictureSize&) const = default;
};

/// Throws DataError unless the picture has pixels and as many bytes as its size says.
void check_picture(const Image& image);

/// Black around the picture up to the longer side; of an odd rest the extra pixel goes to the
/// bottom or to the right. A square comes back as it is.
Image letterbox_square(const Image& image);

/// A part of a picture, in pixels.
struct CropBox {
  int64_t top = 0;
  int64_t left = 0;
  int64_t height = 0;
  int64_t width = 0;
};

/// `fraction` of each side, rounded down, at least one pixel; the middle of the picture, half the
/// rest rounded down before it. Throws ConfigError unless 0 < fraction <= 1.
CropBox center_crop_box(int64_t height, int64_t width, double fraction);
/// The same size at a place given by two numbers of [0, 1): each position fits equally often.
CropBox random_crop_box(int64_t height, int64_t width, double fraction, double uniform_y,
                        double uniform_x);

/// Throws ShapeError when the box is empty or leaves the picture.
Image crop(const Image& image, const CropBox& box);

}  // namespace longship::data
