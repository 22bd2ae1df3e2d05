#include "data/image/letterbox.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;

int64_t part_of(int64_t side, double fraction) {
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(side) * fraction));
}

/// Size of the box, at the upper left corner.
CropBox sized_box(int64_t height, int64_t width, double fraction) {
  LS_CHECK(fraction > 0 && fraction <= 1, ConfigError,
           "crop fraction {} must be above 0 and at most 1", fraction);
  LS_CHECK(height > 0 && width > 0, ShapeError, "no crop of a picture of {}x{} (height x width)",
           height, width);
  return {0, 0, part_of(height, fraction), part_of(width, fraction)};
}

int64_t place(double uniform, int64_t most) {
  return std::clamp<int64_t>(static_cast<int64_t>(uniform * static_cast<double>(most + 1)), 0,
                             most);
}

}  // namespace

void check_picture(const Image& image) {
  LS_CHECK(image.height > 0 && image.width > 0 &&
               static_cast<int64_t>(image.rgb.size()) == image.height * image.width * kChannels,
           DataError, "a picture declared {}x{} (height x width) holds {} bytes, expected {}",
           image.height, image.width, image.rgb.size(), image.height * image.width * kChannels);
}

Image letterbox_square(const Image& image) {
  check_picture(image);
  if (image.height == image.width) return image;
  const int64_t side = std::max(image.height, image.width);
  Image out{side, side, std::vector<uint8_t>(static_cast<size_t>(side * side * kChannels))};
  const int64_t top = (side - image.height) / 2, left = (side - image.width) / 2;
  const int64_t row = image.width * kChannels;
  for (int64_t y = 0; y < image.height; ++y) {
    std::memcpy(out.rgb.data() + ((top + y) * side + left) * kChannels, image.rgb.data() + y * row,
                static_cast<size_t>(row));
  }
  return out;
}

CropBox center_crop_box(int64_t height, int64_t width, double fraction) {
  CropBox box = sized_box(height, width, fraction);
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

CropBox random_crop_box(int64_t height, int64_t width, double fraction, double uniform_y,
                        double uniform_x) {
  CropBox box = sized_box(height, width, fraction);
  box.top = place(uniform_y, height - box.height);
  box.left = place(uniform_x, width - box.width);
  return box;
}

Image crop(const Image& image, const CropBox& box) {
  check_picture(image);
  LS_CHECK(box.height > 0 && box.width > 0 && box.top >= 0 && box.left >= 0 &&
               box.top + box.height <= image.height && box.left + box.width <= image.width,
           ShapeError,
           "crop of {}x{} (height x width) at row {}, column {} leaves a picture of {}x{}",
           box.height, box.width, box.top, box.left, image.height, image.width);
  Image out{box.height, box.width,
            std::vector<uint8_t>(static_cast<size_t>(box.height * box.width * kChannels))};
  const int64_t row = box.width * kChannels;
  for (int64_t y = 0; y < box.height; ++y) {
    std::memcpy(out.rgb.data() + y * row,
                image.rgb.data() + ((box.top + y) * image.width + box.left) * kChannels,
                static_cast<size_t>(row));
  }
  return out;
}

}  // namespace longship::data
