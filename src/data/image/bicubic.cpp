#include "data/image/bicubic.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/image/separable.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;

Taps<int32_t> bicubic_taps(int64_t n_in, int64_t n_out, BicubicFlavour flavour) {
  const Taps<double> taps = antialias_taps(n_in, n_out, FilterKernel::kCubic);
  return flavour == BicubicFlavour::kPillow ? fixed_point(taps, kPillowBits)
                                            : torch_fixed_point(taps);
}

void resize_across(Image& image, int64_t width, BicubicFlavour flavour) {
  if (width == image.width) return;
  image.rgb = horizontal_u8(image.rgb.data(), image.height, image.width,
                            bicubic_taps(image.width, width, flavour));
  image.width = width;
}

void resize_down(Image& image, int64_t height, BicubicFlavour flavour) {
  if (height == image.height) return;
  std::vector<uint8_t> rgb(static_cast<size_t>(height * image.width * kChannels));
  vertical_u8(image.rgb.data(), image.width, bicubic_taps(image.height, height, flavour),
              rgb.data(), image.width * kChannels);
  image.rgb = std::move(rgb);
  image.height = height;
}

enum class Rounding { kNearest, kDown, kUp };

int64_t multiple_of(double side, int64_t factor, Rounding rounding) {
  const double n = side / static_cast<double>(factor);
  const double whole = rounding == Rounding::kNearest ? std::nearbyint(n)
                       : rounding == Rounding::kDown  ? std::floor(n)
                                                      : std::ceil(n);
  return static_cast<int64_t>(whole) * factor;
}

}  // namespace

Image resize_bicubic(const Image& image, int64_t height, int64_t width, BicubicFlavour flavour) {
  check_picture(image);
  LS_CHECK(height > 0 && width > 0, ShapeError,
           "no picture of {}x{} (height x width) can be made of one of {}x{}", height, width,
           image.height, image.width);
  if (height == image.height && width == image.width) return image;
  Image out = image;
  const bool down_first = flavour == BicubicFlavour::kPillow && height < image.height &&
                          image.height - height > 2 * (image.width - width);
  if (down_first) {
    resize_down(out, height, flavour);
    resize_across(out, width, flavour);
  } else {
    resize_across(out, width, flavour);
    resize_down(out, height, flavour);
  }
  return out;
}

PictureSize smart_resize(int64_t height, int64_t width, const SmartResize& rule) {
  LS_CHECK(height > 0 && width > 0, ShapeError, "a picture of {}x{} (height x width) has no pixels",
           height, width);
  LS_CHECK(rule.factor > 0, ConfigError, "picture sizes as multiples of {}: must be at least 1",
           rule.factor);
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  LS_CHECK(std::max(h, w) / std::min(h, w) <= rule.max_ratio, DataError,
           "a picture of {}x{} (height x width): one side is more than {} times the other", height,
           width, rule.max_ratio);
  const bool capped = rule.max_side > 0;
  const auto side = [&](double v, Rounding rounding) {
    return multiple_of(v, rule.factor, rounding);
  };
  PictureSize out{side(h, Rounding::kNearest), side(w, Rounding::kNearest)};
  if (capped) {
    out.height = std::min(std::max(rule.factor, out.height), rule.max_side);
    out.width = std::min(std::max(rule.factor, out.width), rule.max_side);
  }
  const int64_t area = out.height * out.width;
  if (area > rule.max_pixels) {
    const double from_h = capped ? static_cast<double>(out.height) : h;
    const double from_w = capped ? static_cast<double>(out.width) : w;
    const double shrink = std::sqrt(from_h * from_w / static_cast<double>(rule.max_pixels));
    const int64_t least = capped ? 0 : rule.factor;
    out.height = std::max(least, side(from_h / shrink, Rounding::kDown));
    out.width = std::max(least, side(from_w / shrink, Rounding::kDown));
  } else if (area < rule.min_pixels) {
    const double grow = std::sqrt(static_cast<double>(rule.min_pixels) / (h * w));
    out.height = side(h * grow, Rounding::kUp);
    out.width = side(w * grow, Rounding::kUp);
  }
  LS_CHECK(out.height > 0 && out.width > 0, DataError,
           "a picture of {}x{} (height x width) is too narrow: no multiple of {} is left of its "
           "short side",
           height, width, rule.factor);
  return out;
}

}  // namespace longship::data
