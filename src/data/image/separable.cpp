#include "data/image/separable.h"

#include <algorithm>
#include <cmath>

namespace longship::data {
namespace {

constexpr int64_t kChannels = 3;

double triangle(double x) {
  return x < 1.0 ? 1.0 - x : 0.0;
}

/// Keys' cubic with a = -1/2, in Horner form; x >= 0.
double cubic(double x) {
  constexpr double kA = -0.5;
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

inline uint8_t clip8(int32_t sum, int shift) {
  return static_cast<uint8_t>(std::clamp(sum >> shift, 0, 255));
}

}  // namespace

Taps<double> antialias_taps(int64_t n_in, int64_t n_out, FilterKernel kernel) {
  const bool is_cubic = kernel == FilterKernel::kCubic;
  const double scale = static_cast<double>(n_in) / static_cast<double>(n_out);
  const double widened = std::max(scale, 1.0);
  const double support = (is_cubic ? 2.0 : 1.0) * widened;
  const double inverse = 1.0 / widened;
  Taps<double> taps;
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<size_t>(n_out));
  taps.count.resize(static_cast<size_t>(n_out));
  taps.weights.assign(static_cast<size_t>(n_out * taps.stride), 0.0);
  for (int64_t i = 0; i < n_out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t lo = std::max<int64_t>(0, static_cast<int64_t>(center - support + 0.5));
    const int64_t hi = std::min(n_in, static_cast<int64_t>(center + support + 0.5));
    double* w = &taps.weights[static_cast<size_t>(i * taps.stride)];
    double sum = 0;
    for (int64_t j = lo; j < hi; ++j) {
      const double x = std::abs((static_cast<double>(j) - center + 0.5) * inverse);
      w[j - lo] = is_cubic ? cubic(x) : triangle(x);
      sum += w[j - lo];
    }
    for (int64_t j = lo; j < hi; ++j) w[j - lo] /= sum;
    taps.first[static_cast<size_t>(i)] = lo;
    taps.count[static_cast<size_t>(i)] = hi - lo;
  }
  return taps;
}

Taps<int32_t> fixed_point(const Taps<double>& taps, int shift) {
  Taps<int32_t> out{taps.first, taps.count, std::vector<int32_t>(taps.weights.size()), taps.stride,
                    shift};
  const auto one = static_cast<double>(1 << shift);
  for (size_t i = 0; i < taps.weights.size(); ++i) {
    const double w = taps.weights[i] * one;
    out.weights[i] = static_cast<int32_t>(w < 0 ? w - 0.5 : w + 0.5);
  }
  return out;
}

Taps<int32_t> torch_fixed_point(const Taps<double>& taps) {
  const double largest = *std::max_element(taps.weights.begin(), taps.weights.end());
  int shift = 0;
  while (shift < 22 && static_cast<int>(0.5 + largest * (1 << (shift + 1))) < (1 << 15)) ++shift;
  return fixed_point(taps, shift);
}

std::vector<uint8_t> horizontal_u8(const uint8_t* in, int64_t h, int64_t w_in,
                                   const Taps<int32_t>& taps) {
  const auto w_out = static_cast<int64_t>(taps.first.size());
  std::vector<uint8_t> out(static_cast<size_t>(h * w_out * kChannels));
  const int32_t half = 1 << (taps.shift - 1);
  for (int64_t y = 0; y < h; ++y) {
    const uint8_t* row = in + y * w_in * kChannels;
    uint8_t* dst = out.data() + y * w_out * kChannels;
    for (int64_t x = 0; x < w_out; ++x, dst += kChannels) {
      const uint8_t* src = row + taps.first[static_cast<size_t>(x)] * kChannels;
      const int32_t* w = &taps.weights[static_cast<size_t>(x * taps.stride)];
      const int64_t n = taps.count[static_cast<size_t>(x)];
      int32_t r = half, g = half, b = half;
      for (int64_t j = 0; j < n; ++j, src += kChannels) {
        r += w[j] * src[0];
        g += w[j] * src[1];
        b += w[j] * src[2];
      }
      dst[0] = clip8(r, taps.shift);
      dst[1] = clip8(g, taps.shift);
      dst[2] = clip8(b, taps.shift);
    }
  }
  return out;
}

void vertical_u8(const uint8_t* in, int64_t w, const Taps<int32_t>& taps, uint8_t* out,
                 int64_t out_pitch) {
  const auto h_out = static_cast<int64_t>(taps.first.size());
  const int64_t pitch = w * kChannels;
  const int32_t half = 1 << (taps.shift - 1);
  std::vector<int32_t> sums(static_cast<size_t>(pitch));
  for (int64_t y = 0; y < h_out; ++y) {
    int32_t* sum = sums.data();
    std::fill(sums.begin(), sums.end(), half);
    const uint8_t* src = in + taps.first[static_cast<size_t>(y)] * pitch;
    const int32_t* weights = &taps.weights[static_cast<size_t>(y * taps.stride)];
    for (int64_t j = 0; j < taps.count[static_cast<size_t>(y)]; ++j, src += pitch) {
      const int32_t weight = weights[j];
      for (int64_t i = 0; i < pitch; ++i) sum[i] += weight * src[i];
    }
    uint8_t* dst = out + y * out_pitch;
    for (int64_t i = 0; i < pitch; ++i) dst[i] = clip8(sum[i], taps.shift);
  }
}

}  // namespace longship::data
