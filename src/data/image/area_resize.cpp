// The loops run over whole rows of bytes, three per pixel, and keep OpenCV's order of roundings:
// across first, then down.

#include "data/image/area_resize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "data/image/separable.h"

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;
constexpr int kLinearBits = 11;
constexpr float kLinearOne = 1 << kLinearBits;

/// OpenCV divides twice: the last bit decides where a cell begins.
double scale_of(int64_t n_in, int64_t n_out) {
  return 1.0 / (static_cast<double>(n_out) / static_cast<double>(n_in));
}

/// A sum of at most 255 and a rounding error, halves to even.
inline uint8_t to_level(float v) {
  constexpr float kBig = 12582912.0F;  // 1.5 * 2^23: no bits are left behind the point
  return static_cast<uint8_t>(std::min(static_cast<int32_t>((v + kBig) - kBig), 255));
}

/// Shares of the input samples in the cell [i, i + 1) * scale of output i. Slivers below 1/1000
/// are dropped.
Taps<float> area_taps(int64_t n_in, int64_t n_out) {
  constexpr double kSliver = 1e-3;
  const double scale = scale_of(n_in, n_out);
  Taps<float> taps;
  taps.stride = static_cast<int64_t>(std::ceil(scale)) + 2;
  taps.first.resize(static_cast<size_t>(n_out));
  taps.count.resize(static_cast<size_t>(n_out));
  taps.weights.assign(static_cast<size_t>(n_out * taps.stride), 0.0F);
  for (int64_t i = 0; i < n_out; ++i) {
    const double begin = static_cast<double>(i) * scale;
    const double end = begin + scale;
    const double cell = std::min(scale, static_cast<double>(n_in) - begin);
    const int64_t last = std::min(static_cast<int64_t>(std::floor(end)), n_in - 1);
    const int64_t first = std::min(static_cast<int64_t>(std::ceil(begin)), last);
    float* w = &taps.weights[static_cast<size_t>(i * taps.stride)];
    int64_t n = 0;
    const double before = static_cast<double>(first) - begin;
    const bool cut = before > kSliver;
    if (cut) w[n++] = static_cast<float>(before / cell);
    for (int64_t j = first; j < last; ++j) w[n++] = static_cast<float>(1.0 / cell);
    const double after = end - static_cast<double>(last);
    if (after > kSliver) w[n++] = static_cast<float>(std::min({after, 1.0, cell}) / cell);
    taps.first[static_cast<size_t>(i)] = first - (cut ? 1 : 0);
    taps.count[static_cast<size_t>(i)] = n;
  }
  return taps;
}

/// One row of bytes -> one row of cell means; `levels` is room for the row in fp32.
void mean_across(const uint8_t* in, int64_t w_in, const Taps<float>& taps, float* levels,
                 float* out) {
  for (int64_t i = 0; i < w_in * kChannels; ++i) levels[i] = static_cast<float>(in[i]);
  const auto w_out = static_cast<int64_t>(taps.first.size());
  for (int64_t x = 0; x < w_out; ++x, out += kChannels) {
    const float* src = levels + taps.first[static_cast<size_t>(x)] * kChannels;
    const float* w = &taps.weights[static_cast<size_t>(x * taps.stride)];
    const int64_t n = taps.count[static_cast<size_t>(x)];
    float r = 0, g = 0, b = 0;
    for (int64_t j = 0; j < n; ++j, src += kChannels) {
      r += src[0] * w[j];
      g += src[1] * w[j];
      b += src[2] * w[j];
    }
    out[0] = r;
    out[1] = g;
    out[2] = b;
  }
}

void shrink(const Image& image, Image& out) {
  const Taps<float> across = area_taps(image.width, out.width);
  const Taps<float> down = area_taps(image.height, out.height);
  const int64_t pitch_in = image.width * kChannels, pitch = out.width * kChannels;
  std::vector<float> levels(static_cast<size_t>(pitch_in)), means(static_cast<size_t>(pitch)),
      sums(static_cast<size_t>(pitch));
  float *mean = means.data(), *sum = sums.data();
  int64_t held = -1;  // a row that two cells share is computed once
  for (int64_t y = 0; y < out.height; ++y) {
    const float* weights = &down.weights[static_cast<size_t>(y * down.stride)];
    for (int64_t j = 0; j < down.count[static_cast<size_t>(y)]; ++j) {
      const int64_t row = down.first[static_cast<size_t>(y)] + j;
      if (row != held)
        mean_across(image.rgb.data() + row * pitch_in, image.width, across, levels.data(), mean);
      held = row;
      const float weight = weights[j];
      if (j == 0) {
        for (int64_t i = 0; i < pitch; ++i) sum[i] = weight * mean[i];
      } else {
        for (int64_t i = 0; i < pitch; ++i) sum[i] += weight * mean[i];
      }
    }
    uint8_t* dst = out.rgb.data() + y * pitch;
    for (int64_t i = 0; i < pitch; ++i) dst[i] = to_level(sum[i]);
  }
}

/// Cells of factor_y x factor_x whole pixels. 2x2 rounds halves up, the others to even.
void shrink_whole(const Image& image, int64_t factor_y, int64_t factor_x, Image& out) {
  const int64_t pitch_in = image.width * kChannels, pitch = out.width * kChannels;
  const float share = 1.0F / static_cast<float>(factor_y * factor_x);
  const bool halves = factor_y == 2 && factor_x == 2;
  std::vector<int32_t> columns(static_cast<size_t>(pitch_in)), sums(static_cast<size_t>(pitch));
  int32_t *column = columns.data(), *sum = sums.data();
  for (int64_t y = 0; y < out.height; ++y) {
    std::fill(columns.begin(), columns.end(), 0);
    const uint8_t* src = image.rgb.data() + y * factor_y * pitch_in;
    for (int64_t j = 0; j < factor_y; ++j, src += pitch_in) {
      for (int64_t i = 0; i < pitch_in; ++i) column[i] += src[i];
    }
    for (int64_t x = 0; x < out.width; ++x) {
      const int32_t* cell = column + x * factor_x * kChannels;
      int32_t r = 0, g = 0, b = 0;
      for (int64_t j = 0; j < factor_x; ++j, cell += kChannels) {
        r += cell[0];
        g += cell[1];
        b += cell[2];
      }
      sum[x * kChannels] = r;
      sum[x * kChannels + 1] = g;
      sum[x * kChannels + 2] = b;
    }
    uint8_t* dst = out.rgb.data() + y * pitch;
    if (halves) {
      for (int64_t i = 0; i < pitch; ++i) dst[i] = static_cast<uint8_t>((sum[i] + 2) >> 2);
    } else {
      for (int64_t i = 0; i < pitch; ++i) dst[i] = to_level(static_cast<float>(sum[i]) * share);
    }
  }
}

/// Two neighbours per output sample with weights of kLinearBits bits.
struct LinearTaps {
  std::vector<int64_t> first;
  std::vector<int16_t> near_weight, far_weight;
};

/// The share of the second sample grows only where the output's cell reaches into it. `clamped`:
/// at the last sample OpenCV takes it whole across, but not down, where it stands for both.
LinearTaps linear_taps(int64_t n_in, int64_t n_out, bool clamped) {
  const double inverse = static_cast<double>(n_out) / static_cast<double>(n_in);
  const double scale = 1.0 / inverse;
  LinearTaps taps;
  for (int64_t i = 0; i < n_out; ++i) {
    const int64_t j =
        std::min(static_cast<int64_t>(std::floor(static_cast<double>(i) * scale)), n_in - 1);
    auto f = static_cast<float>(static_cast<double>(i + 1) - static_cast<double>(j + 1) * inverse);
    f = f <= 0 ? 0.0F : f - std::floor(f);
    if (clamped && j == n_in - 1) f = 0;
    taps.first.push_back(j);
    taps.near_weight.push_back(static_cast<int16_t>(std::nearbyint((1.0F - f) * kLinearOne)));
    taps.far_weight.push_back(static_cast<int16_t>(std::nearbyint(f * kLinearOne)));
  }
  return taps;
}

/// One row -> levels times 2^7: the four lowest of the eleven fraction bits are cut.
void linear_across(const uint8_t* in, int64_t w_in, const LinearTaps& taps, int16_t* out) {
  const auto w_out = static_cast<int64_t>(taps.first.size());
  for (int64_t x = 0; x < w_out; ++x, out += kChannels) {
    const int64_t j = taps.first[static_cast<size_t>(x)];
    const uint8_t* a = in + j * kChannels;
    const uint8_t* b = in + std::min(j + 1, w_in - 1) * kChannels;
    const int32_t wa = taps.near_weight[static_cast<size_t>(x)];
    const int32_t wb = taps.far_weight[static_cast<size_t>(x)];
    for (int64_t c = 0; c < kChannels; ++c)
      out[c] = static_cast<int16_t>((a[c] * wa + b[c] * wb) >> 4);
  }
}

void enlarge(const Image& image, Image& out) {
  const LinearTaps across = linear_taps(image.width, out.width, true);
  const LinearTaps down = linear_taps(image.height, out.height, false);
  const int64_t pitch_in = image.width * kChannels, pitch = out.width * kChannels;
  std::vector<int16_t> rows[2] = {std::vector<int16_t>(static_cast<size_t>(pitch)),
                                  std::vector<int16_t>(static_cast<size_t>(pitch))};
  int64_t held[2] = {-1, -1};  // source rows in `rows`, each in the place of its parity
  const auto row_of = [&](int64_t y) {
    const auto slot = static_cast<size_t>(y % 2);
    if (held[slot] != y)
      linear_across(image.rgb.data() + y * pitch_in, image.width, across, rows[slot].data());
    held[slot] = y;
    return rows[slot].data();
  };
  for (int64_t y = 0; y < out.height; ++y) {
    const int64_t j = down.first[static_cast<size_t>(y)];
    const int16_t* a = row_of(j);
    const int16_t* b = row_of(std::min(j + 1, image.height - 1));
    const int16_t wa = down.near_weight[static_cast<size_t>(y)];
    const int16_t wb = down.far_weight[static_cast<size_t>(y)];
    uint8_t* dst = out.rgb.data() + y * pitch;
    for (int64_t i = 0; i < pitch; ++i) {
      const auto upper = static_cast<int16_t>((a[i] * wa) >> 16);
      const auto lower = static_cast<int16_t>((b[i] * wb) >> 16);
      dst[i] = static_cast<uint8_t>((upper + lower + 2) >> 2);
    }
  }
}

}  // namespace

Image resize_area(const Image& image, int64_t height, int64_t width) {
  check_picture(image);
  LS_CHECK(height > 0 && width > 0, ShapeError,
           "no picture of {}x{} (height x width) can be made of one of {}x{}", height, width,
           image.height, image.width);
  if (height == image.height && width == image.width) return image;
  Image out{height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * kChannels))};
  const double scale_y = scale_of(image.height, height), scale_x = scale_of(image.width, width);
  if (scale_y < 1 || scale_x < 1) {
    enlarge(image, out);
    return out;
  }
  const auto factor_y = static_cast<int64_t>(std::nearbyint(scale_y));
  const auto factor_x = static_cast<int64_t>(std::nearbyint(scale_x));
  constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
  if (std::abs(scale_y - static_cast<double>(factor_y)) < kEpsilon &&
      std::abs(scale_x - static_cast<double>(factor_x)) < kEpsilon) {
    shrink_whole(image, factor_y, factor_x, out);
  } else {
    shrink(image, out);
  }
  return out;
}

PictureSize smallest_max_size(int64_t height, int64_t width, int64_t shortest) {
  LS_CHECK(shortest > 0, ConfigError, "shortest side {} of a picture must be at least 1", shortest);
  LS_CHECK(height > 0 && width > 0, ShapeError, "a picture of {}x{} (height x width) has no pixels",
           height, width);
  const double scale = static_cast<double>(shortest) / static_cast<double>(std::min(height, width));
  if (scale == 1.0) return {height, width};
  return {static_cast<int64_t>(std::nearbyint(static_cast<double>(height) * scale)),
          static_cast<int64_t>(std::nearbyint(static_cast<double>(width) * scale))};
}

Image resize_smallest_max_size(const Image& image, int64_t shortest) {
  check_picture(image);
  const PictureSize size = smallest_max_size(image.height, image.width, shortest);
  return resize_area(image, size.height, size.width);
}

}  // namespace longship::data
