// The picture is changed stage by stage, as the definition reads. Positions are computed in the
// same float operations as on the GPU, so that both look at the same pixels.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "data/augment/picture.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;
constexpr std::array<float, 3> kRec601 = {0.2989F, 0.587F, 0.114F};

float unit(float v) {
  return std::min(std::max(v, 0.0F), 1.0F);
}

/// To the nearest whole number, halves to even; for |v| below 2^22. Faster than the library's call.
float round_even(float v) {
  constexpr float kBig = 12582912.0F;  // 1.5 * 2^23: no bits are left behind the point
  return (v + kBig) - kBig;
}

/// Along one axis: the frame of `frame` pixels shows `part` pixels from `first` on.
struct Axis {
  Axis(float first_pixel, float pixels, int64_t frame_size, bool to_nearest)
      : first(first_pixel),
        last(first_pixel + pixels - 1.0F),
        scale(pixels / static_cast<float>(frame_size)),
        shift(first_pixel - 0.5F),
        size(static_cast<float>(frame_size)),
        nearest(to_nearest) {}
  float first, last, scale, shift, size;
  bool nearest;
};

/// Where one output pixel looks, along one axis.
struct Look {
  int32_t low = 0, high = 0;  // source pixels
  float part = 0;             // share of `high`
  float cover = 1;            // 0: outside the frame
};

inline Look look(const Axis& axis, float q) {
  Look out;
  float p = (q + 0.5F) * axis.scale + axis.shift;
  p = std::min(std::max(p, axis.first), axis.last);
  if (axis.nearest) {
    const float rounded = round_even(q);
    out.cover = rounded >= 0.0F && rounded <= axis.size - 1.0F ? 1.0F : 0.0F;
    out.low = out.high = static_cast<int32_t>(round_even(p));
    return out;
  }
  out.cover = unit(std::min(q + 1.0F, axis.size - q));
  out.low = static_cast<int32_t>(p);  // p >= 0
  out.part = p - static_cast<float>(out.low);
  out.high = std::min(out.low + 1, static_cast<int32_t>(axis.last));
  return out;
}

/// A pixel of three channels and one unused, so that a tap is one load.
struct alignas(16) Pixel {
  float c[4];
};

std::vector<Pixel> interleaved(std::span<const float> picture, size_t plane) {
  std::vector<Pixel> out(plane);
  const float *r = picture.data(), *g = r + plane, *b = g + plane;
  for (size_t i = 0; i < plane; ++i) out[i] = {{r[i], g[i], b[i], 0.0F}};
  return out;
}

inline Pixel mix(const Pixel& a, const Pixel& b, float part) {
  Pixel out;
  const float rest = 1.0F - part;
  for (int i = 0; i < 4; ++i) out.c[i] = rest * a.c[i] + part * b.c[i];
  return out;
}

/// `black` is what stands outside.
void move_pixels(const PictureAugment& a, std::span<float> picture, int64_t height, int64_t width,
                 float black) {
  const size_t plane = static_cast<size_t>(height * width);
  const std::vector<Pixel> source = interleaved(picture, plane);
  const auto& m = a.place;
  const Axis across(a.crop_x, a.crop_w, width, a.nearest);
  const Axis down(a.crop_y, a.crop_h, height, a.nearest);
  float* out = picture.data();
  for (int64_t y = 0; y < height; ++y) {
    const float row_x = m[1] * static_cast<float>(y), row_y = m[4] * static_cast<float>(y);
    for (int64_t x = 0; x < width; ++x, ++out) {
      const auto fx = static_cast<float>(x);
      const Look h = look(across, m[0] * fx + row_x + m[2]);
      const Look v = look(down, m[3] * fx + row_y + m[5]);
      const Pixel* top = source.data() + int64_t{v.low} * width;
      const Pixel* bottom = source.data() + int64_t{v.high} * width;
      Pixel value = a.nearest ? top[h.low]
                              : mix(mix(top[h.low], top[h.high], h.part),
                                    mix(bottom[h.low], bottom[h.high], h.part), v.part);
      const float cover = h.cover * v.cover;
      if (cover != 1.0F) {
        for (float& c : value.c) c = black + cover * (c - black);
      }
      out[0] = value.c[0];
      out[plane] = value.c[1];
      out[2 * plane] = value.c[2];
    }
  }
}

void blend(std::span<float> picture, float factor, float with, bool clamp) {
  const float rest = (1.0F - factor) * with;
  for (float& v : picture) v = factor * v + rest;
  if (clamp) {
    for (float& v : picture) v = unit(v);
  }
}

std::array<float, 3> grey_weights(bool openpi) {
  constexpr float kThird = 1.0F / 3.0F;
  return openpi ? std::array<float, 3>{kThird, kThird, kThird} : kRec601;
}

float mean_grey(std::span<const float> picture, size_t plane, bool openpi) {
  const auto w = grey_weights(openpi);
  double sum = 0;
  for (size_t i = 0; i < plane; ++i) {
    sum += static_cast<double>(w[0] * picture[i] + w[1] * picture[plane + i] +
                               w[2] * picture[2 * plane + i]);
  }
  return static_cast<float>(sum / static_cast<double>(plane));
}

void saturate(std::span<float> picture, size_t plane, float factor, bool openpi) {
  const auto w = grey_weights(openpi);
  for (size_t i = 0; i < plane; ++i) {
    float &r = picture[i], &g = picture[plane + i], &b = picture[2 * plane + i];
    const float rest = (1.0F - factor) * (w[0] * r + w[1] * g + w[2] * b);
    r = factor * r + rest;
    g = factor * g + rest;
    b = factor * b + rest;
  }
  if (!openpi) {
    for (float& v : picture) v = unit(v);
  }
}

/// Hue of (r, g, b) in [0, 1] turned by `turns`; saturation and value stay.
std::array<float, 3> turn_hue(float r, float g, float b, float turns) {
  const float most = std::max({r, g, b}), least = std::min({r, g, b});
  const float spread = most - least;
  if (spread <= 0.0F) return {r, g, b};
  const float rc = (most - r) / spread, gc = (most - g) / spread, bc = (most - b) / spread;
  float sector = bc - gc;  // in sixths of a turn, red at 0
  if (most != r) sector = most == g ? 2.0F + rc - bc : 4.0F + gc - rc;
  float hue = sector / 6.0F + turns;
  hue -= std::floor(hue);
  const float scaled = hue * 6.0F;
  const float whole = std::floor(scaled);
  const float rest = scaled - whole;
  const float p = least, q = most - spread * rest, t = most - spread * (1.0F - rest);
  switch (static_cast<int>(whole) % 6) {
    case 0:
      return {most, t, p};
    case 1:
      return {q, most, p};
    case 2:
      return {p, most, t};
    case 3:
      return {p, q, most};
    case 4:
      return {t, p, most};
    default:
      return {most, p, q};
  }
}

void change_hue(std::span<float> picture, size_t plane, float turns) {
  for (size_t i = 0; i < plane; ++i) {
    const auto turned =
        turn_hue(unit(picture[i]), unit(picture[plane + i]), unit(picture[2 * plane + i]), turns);
    for (size_t c = 0; c < turned.size(); ++c) picture[c * plane + i] = turned[c];
  }
}

void sharpen(std::span<float> picture, int64_t height, int64_t width, float factor, bool clamp) {
  if (height < 3 || width < 3) return;
  const std::vector<float> source(picture.begin(), picture.end());
  for (int64_t c = 0; c < kChannels; ++c) {
    for (int64_t y = 0; y < height; ++y) {
      const bool border = y == 0 || y == height - 1;
      const float* s = source.data() + (c * height + y) * width;
      float* out = picture.data() + (c * height + y) * width;
      for (int64_t x = 0; x < width; ++x) {
        if (border || x == 0 || x == width - 1) continue;  // blends with itself
        const float around = s[x - width - 1] + s[x - width] + s[x - width + 1] + s[x - 1] +
                             s[x + 1] + s[x + width - 1] + s[x + width] + s[x + width + 1];
        const float blurred = (around + 5.0F * s[x]) / 13.0F;
        out[x] = factor * s[x] + (1.0F - factor) * blurred;
      }
    }
  }
  if (clamp) {
    for (float& v : picture) v = unit(v);
  }
}

void colour(const PictureAugment& a, std::span<float> picture, int64_t height, int64_t width) {
  const size_t plane = static_cast<size_t>(height * width);
  const bool clamp = !a.openpi_colour;
  for (float& v : picture) v = v * 0.5F + 0.5F;
  for (size_t k = 0; k < a.ops.size() && a.ops[k] != ColourOp::kNone; ++k) {
    const float factor = a.factors[k];
    switch (a.ops[k]) {
      case ColourOp::kBrightness:
        blend(picture, factor, 0.0F, clamp);
        break;
      case ColourOp::kContrast:
        blend(picture, factor, mean_grey(picture, plane, a.openpi_colour), clamp);
        break;
      case ColourOp::kSaturation:
        saturate(picture, plane, factor, a.openpi_colour);
        break;
      default:
        change_hue(picture, plane, factor);
    }
  }
  if (a.sharpness != 1.0F) sharpen(picture, height, width, a.sharpness, clamp);
  for (float& v : picture) v = unit(v) * 2.0F - 1.0F;
}

}  // namespace

void apply_augment(const PictureAugment& augment, std::span<float> picture, int64_t height,
                   int64_t width) {
  LS_CHECK(
      height > 0 && width > 0 && static_cast<int64_t>(picture.size()) == kChannels * height * width,
      ShapeError, "augment: {} numbers are no picture of 3 x {} x {}", picture.size(), height,
      width);
  constexpr float kBlack = -1.0F;
  const bool moves = augment.moves(height, width);
  if (moves && !augment.geometry_last) move_pixels(augment, picture, height, width, kBlack);
  if (augment.colours()) colour(augment, picture, height, width);
  if (moves && augment.geometry_last) move_pixels(augment, picture, height, width, kBlack);
}

}  // namespace longship::data
