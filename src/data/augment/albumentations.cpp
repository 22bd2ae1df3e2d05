#include "data/augment/albumentations.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "data/image/area_resize.h"
#include "data/image/letterbox.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;
constexpr double kMostFactor = 100;

// Places in a sample's sequence of numbers.
enum Number : uint64_t {
  kCropY,
  kCropX,
  kBrightnessFactor,
  kContrastFactor,
  kSaturationFactor,
  kHueShift,
  kOrder,  // four ranks
};

using Table = std::array<uint8_t, 256>;

void look_up(Image& image, const Table& table) {
  for (uint8_t& v : image.rgb) v = table[v];
}

/// level * factor + shift in fp32, clipped and truncated.
Table affine_table(double factor, double shift) {
  Table table{};
  for (size_t i = 0; i < table.size(); ++i) {
    const float v = static_cast<float>(i) * static_cast<float>(factor) + static_cast<float>(shift);
    table[i] = static_cast<uint8_t>(std::clamp(v, 0.0F, 255.0F));
  }
  return table;
}

/// OpenCV's RGB2GRAY: 15 fraction bits, rounded.
inline int32_t grey_of(const uint8_t* rgb) {
  return (rgb[0] * 9798 + rgb[1] * 19235 + rgb[2] * 3735 + (1 << 14)) >> 15;
}

void change_contrast(Image& image, double factor) {
  int64_t sum = 0;
  for (size_t i = 0; i < image.rgb.size(); i += kChannels) sum += grey_of(&image.rgb[i]);
  const double mean = static_cast<double>(sum) / static_cast<double>(image.height * image.width);
  if (factor == 0) {
    std::fill(image.rgb.begin(), image.rgb.end(), static_cast<uint8_t>(mean + 0.5));
    return;
  }
  look_up(image, affine_table(factor, mean * (1 - factor)));
}

/// Clipped, halves to even; for |v| below 2^22. Clipped as an integer, which can be vectorised.
inline uint8_t rounded_level(float v) {
  constexpr float kBig = 12582912.0F;  // 1.5 * 2^23: no bits are left behind the point
  return static_cast<uint8_t>(std::clamp(static_cast<int32_t>((v + kBig) - kBig), 0, 255));
}

/// level * own + grey * rest; OpenCV's build rounds the sum once: the double holds it all.
void change_saturation(Image& image, double factor) {
  const auto own = static_cast<double>(static_cast<float>(factor));
  const auto rest = static_cast<float>(1 - factor);
  const int64_t pitch = image.width * kChannels;
  std::vector<float> greys(static_cast<size_t>(pitch));  // of each level of a row
  float* grey = greys.data();
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* rgb = image.rgb.data() + y * pitch;
    for (int64_t i = 0; i < pitch; i += kChannels)
      grey[i] = grey[i + 1] = grey[i + 2] = static_cast<float>(grey_of(rgb + i)) * rest;
    for (int64_t i = 0; i < pitch; ++i)
      rgb[i] = rounded_level(static_cast<float>(rgb[i] * own + static_cast<double>(grey[i])));
  }
}

/// OpenCV's RGB2HSV divides by tables with 12 fraction bits.
constexpr int kHsvBits = 12;
constexpr int32_t kHalfTurn = 180;  // values of H

struct Quotients {
  std::array<int32_t, 256> saturation{}, hue{};
};

const Quotients& quotients() {
  static const Quotients tables = [] {
    Quotients q;
    for (int i = 1; i < 256; ++i) {
      const auto at = static_cast<size_t>(i);
      q.saturation[at] = static_cast<int32_t>(std::nearbyint((255 << kHsvBits) / (1.0 * i)));
      q.hue[at] = static_cast<int32_t>(std::nearbyint((kHalfTurn << kHsvBits) / (6.0 * i)));
    }
    return q;
  }();
  return tables;
}

struct Hsv {
  int32_t h, s, v;
};

inline Hsv to_hsv(const uint8_t* rgb, const Quotients& tables) {
  const int32_t r = rgb[0], g = rgb[1], b = rgb[2];
  const int32_t most = std::max(std::max(r, g), b), least = std::min(std::min(r, g), b);
  const int32_t spread = most - least;
  constexpr int32_t kHalf = 1 << (kHsvBits - 1);
  int32_t sixths = r - g + 4 * spread;
  if (most == g) sixths = b - r + 2 * spread;
  if (most == r) sixths = g - b;
  int32_t h = (sixths * tables.hue[static_cast<size_t>(spread)] + kHalf) >> kHsvBits;
  h += h < 0 ? kHalfTurn : 0;
  return {h, (spread * tables.saturation[static_cast<size_t>(most)] + kHalf) >> kHsvBits, most};
}

/// What HSV2RGB needs of a value of H: a pixel has a largest, a smallest and a middle level.
struct Hue {
  float part = 0;                 // of the saturation, by which the middle falls
  std::array<uint8_t, 3> pick{};  // of R, G, B: 0 the largest, 1 the smallest, 2 the middle level
};
using Hues = std::array<Hue, 256>;

/// For H before the shift.
Hues shifted_hues(double turns) {
  constexpr std::array<std::array<uint8_t, 3>, 6> kSectors = {
      {{0, 2, 1}, {2, 0, 1}, {1, 0, 2}, {1, 2, 0}, {2, 1, 0}, {0, 1, 2}}};
  Hues out;
  for (size_t i = 0; i < out.size(); ++i) {
    double h = std::fmod(static_cast<double>(i) + kHalfTurn * turns, kHalfTurn);
    if (h < 0) h += kHalfTurn;
    const float sixths = static_cast<float>(static_cast<uint8_t>(h)) * (6.0F / kHalfTurn);
    const auto sector = static_cast<size_t>(sixths);
    const float part = sixths - static_cast<float>(sector);
    out[i] = {sector % 2 != 0 ? part : 1.0F - part, kSectors[sector % kSectors.size()]};
  }
  return out;
}

/// 1 - a * b with one rounding: OpenCV's build fuses it.
inline float one_minus(float a, float b) {
  return static_cast<float>(1.0 - static_cast<double>(a) * static_cast<double>(b));
}

template <bool kRounded>
void turn_pixels(uint8_t* rgb, int64_t count, const Hues& hues, const Quotients& tables) {
  constexpr float kLevel = 1.0F / 255.0F;
  for (int64_t i = 0; i < count; ++i, rgb += kChannels) {
    const Hsv hsv = to_hsv(rgb, tables);
    const Hue& hue = hues[static_cast<size_t>(hsv.h)];
    const float s = static_cast<float>(hsv.s) * kLevel;
    const float v = static_cast<float>(hsv.v) * kLevel;
    const std::array<float, 3> levels = {v * 255.0F, v * (1.0F - s) * 255.0F,
                                         v * one_minus(s, hue.part) * 255.0F};
    std::array<uint8_t, 3> bytes{};
    for (size_t k = 0; k < levels.size(); ++k)
      bytes[k] = kRounded ? rounded_level(levels[k]) : static_cast<uint8_t>(levels[k]);
    for (size_t c = 0; c < bytes.size(); ++c) rgb[c] = bytes[hue.pick[c]];
  }
}

void change_hue(Image& image, double turns) {
  constexpr int64_t kBlock = 32;
  const Hues hues = shifted_hues(turns);
  const Quotients& tables = quotients();
  const int64_t truncated = image.width / kBlock * kBlock;
  for (int64_t y = 0; y < image.height; ++y) {
    uint8_t* row = image.rgb.data() + y * image.width * kChannels;
    turn_pixels<false>(row, truncated, hues, tables);
    turn_pixels<true>(row + truncated * kChannels, image.width - truncated, hues, tables);
  }
}

double factor_of(const AlbumentationsDraw& draw, ColourOp op) {
  switch (op) {
    case ColourOp::kBrightness:
      return draw.brightness;
    case ColourOp::kContrast:
      return draw.contrast;
    case ColourOp::kSaturation:
      return draw.saturation;
    case ColourOp::kHue:
      return draw.hue;
    default:
      return 1;
  }
}

/// Up to the first resize, which both chains share.
Image sized(const Image& image, const AlbumentationsConfig& config) {
  return resize_smallest_max_size(config.letterbox ? letterbox_square(image) : image,
                                  config.shortest_edge);
}

}  // namespace

void AlbumentationsConfig::check() const {
  LS_CHECK(shortest_edge > 0, ConfigError, "shortest_edge: {} must be at least 1", shortest_edge);
  LS_CHECK(crop_fraction > 0 && crop_fraction <= 1, ConfigError,
           "crop_fraction: {} must be above 0 and at most 1", crop_fraction);
  for (const auto& [name, value] :
       {std::pair{"brightness", jitter.brightness}, std::pair{"contrast", jitter.contrast},
        std::pair{"saturation", jitter.saturation}}) {
    LS_CHECK(value >= 0 && value <= kMostFactor - 1, ConfigError,
             "jitter.{}: {} must be from 0 to {}", name, value, kMostFactor - 1);
  }
  LS_CHECK(jitter.hue >= 0 && jitter.hue <= 0.5, ConfigError,
           "jitter.hue: {} must be from 0 to 0.5 turns", jitter.hue);
}

AlbumentationsDraw draw_albumentations(const AlbumentationsConfig& config, const TrainDraw& draw,
                                       int64_t sample_id) {
  config.check();
  const RngKey key =
      make_key(draw.seed, RngStream::kAugment, draw.step, static_cast<uint64_t>(sample_id));
  // Beside the numbers of draw_augment, which begin at 32 bits of a camera's name.
  static const uint64_t base = (hash_name("albumentations") & 0xFFFFFFFFULL) << 16;
  std::array<double, kOrder + 4> u{};
  fill_uniform(key, u, base);
  const auto factor = [&](Number which, double width) {
    const double low = std::max(0.0, 1 - width);
    return low + (1 + width - low) * u[which];
  };
  AlbumentationsDraw out;
  out.crop_y = u[kCropY];
  out.crop_x = u[kCropX];
  out.brightness = factor(kBrightnessFactor, config.jitter.brightness);
  out.contrast = factor(kContrastFactor, config.jitter.contrast);
  out.saturation = factor(kSaturationFactor, config.jitter.saturation);
  out.hue = config.jitter.hue * (2 * u[kHueShift] - 1);
  std::array<std::pair<double, ColourOp>, 4> ranks;
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = {u[kOrder + i], out.order[i]};
  std::sort(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) out.order[i] = ranks[i].second;
  return out;
}

void change_colour(Image& image, ColourOp op, double factor) {
  check_picture(image);
  LS_CHECK(std::abs(factor) <= kMostFactor, ConfigError,
           "factor {} of a colour operation is beyond {}", factor, kMostFactor);
  if (factor == (op == ColourOp::kHue ? 0.0 : 1.0)) return;
  switch (op) {
    case ColourOp::kBrightness:
      return look_up(image, affine_table(factor, 0));
    case ColourOp::kContrast:
      return change_contrast(image, factor);
    case ColourOp::kSaturation:
      return change_saturation(image, factor);
    case ColourOp::kHue:
      return change_hue(image, factor);
    case ColourOp::kNone:
      return;
  }
}

Image train_picture(const Image& image, const AlbumentationsConfig& config,
                    const AlbumentationsDraw& draw) {
  const Image whole = sized(image, config);
  Image out = resize_smallest_max_size(
      crop(whole, random_crop_box(whole.height, whole.width, config.crop_fraction, draw.crop_y,
                                  draw.crop_x)),
      config.shortest_edge);
  for (const ColourOp op : draw.order) change_colour(out, op, factor_of(draw, op));
  return out;
}

Image eval_picture(const Image& image, const AlbumentationsConfig& config) {
  const Image whole = sized(image, config);
  return resize_smallest_max_size(
      crop(whole, center_crop_box(whole.height, whole.width, config.crop_fraction)),
      config.shortest_edge);
}

}  // namespace longship::data
