#pragma once
// OpenCV's INTER_AREA on 8-bit RGB, with its arithmetic (4.12, imgproc/resize.cpp), so that values
// agree to the bit. Pinned by tests/golden/groot_preprocess/image_eval. Torch-free and thread-safe.

#include <cstdint>

#include "data/image/letterbox.h"
#include "data/sample.h"

namespace longship::data {

/// cv2.resize(image, (width, height), interpolation=INTER_AREA). Neither side grows: the mean over
/// the area of the new pixel, in fp32 (whole factors: in integers). Else: bilinear in fixed point
/// with the area's coordinates. The same size: a copy. Throws DataError on a broken picture,
/// ShapeError on a size below 1.
Image resize_area(const Image& image, int64_t height, int64_t width);

/// albumentations' SmallestMaxSize: scale = shortest / min(height, width) in double, both sides
/// times scale, rounded with halves to even; unchanged when the scale is 1. Throws ConfigError
/// when `shortest` is below 1.
PictureSize smallest_max_size(int64_t height, int64_t width, int64_t shortest);
/// resize_area to that size.
Image resize_smallest_max_size(const Image& image, int64_t shortest);

}  // namespace longship::data
