#pragma once
// Separable resampling of 8-bit RGB in fixed point: the filters of Pillow and of torch's uint8
// path, as weights per output sample and two passes, each of which rounds to 8 bits. Torch-free.

#include <cstdint>
#include <vector>

namespace longship::data {

/// Output sample i is the sum of weights[i*stride + j] times input sample first[i] + j, for j <
/// count[i].
template <class W>
struct Taps {
  std::vector<int64_t> first;
  std::vector<int64_t> count;
  std::vector<W> weights;
  int64_t stride = 0;
  int shift = 0;  // fixed-point weights only: fraction bits
};

enum class FilterKernel {
  kTriangle,  // Pillow's BILINEAR
  kCubic,     // Pillow's BICUBIC and torch's bicubic with antialias: a = -1/2
};

/// Pillow's precompute_coeffs: the kernel is widened by the scale when shrinking (antialias).
/// Weights of a sample add up to 1.
Taps<double> antialias_taps(int64_t n_in, int64_t n_out, FilterKernel kernel);

/// Weights times 2^shift, rounded half away from zero.
Taps<int32_t> fixed_point(const Taps<double>& taps, int shift);
/// Fraction bits of Pillow's 8-bit resampling.
inline constexpr int kPillowBits = 22;
/// torch's uint8 weights: 16 bits with as many fraction bits as the largest weight allows.
Taps<int32_t> torch_fixed_point(const Taps<double>& taps);

/// Horizontal pass over [h, w_in, 3] -> [h, taps.first.size(), 3].
std::vector<uint8_t> horizontal_u8(const uint8_t* in, int64_t h, int64_t w_in,
                                   const Taps<int32_t>& taps);
/// Vertical pass over [h_in, w, 3]; row i of the result starts at out + i*out_pitch (bytes).
void vertical_u8(const uint8_t* in, int64_t w, const Taps<int32_t>& taps, uint8_t* out,
                 int64_t out_pitch);

}  // namespace longship::data
