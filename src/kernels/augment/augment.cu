// One thread makes one output pixel at a time, all three channels: it looks up to four source
// pixels up (36 under sharpness), which neighbours share in L1, and writes once. A first launch
// sums the grey of those pictures that change contrast; the others leave it at once. Memory: the
// pictures are read once (twice with contrast, the second time mostly from L2) and written once;
// 256 threads, fewer than 64 registers. Positions use unfused operations, so that the host, which
// has no fused multiply-add, looks at the same pixels.
#include <cuda_bf16.h>

#include <algorithm>
#include <limits>

#include "kernels/augment/augment.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPixelsPerBlock = 4 * kThreads;
constexpr int64_t kMaxPartials = 128;  // at most kThreads: one block adds them

enum Op { kNone = 0, kBrightness = 1, kContrast = 2, kSaturation = 3, kHue = 4 };

struct Rgb {
  float r, g, b;
};

__device__ inline float unit(float v) {
  return fminf(fmaxf(v, 0.0f), 1.0f);
}

/// One picture's parameters.
struct Params {
  float place[6];
  float crop_x, crop_y, crop_w, crop_h;
  bool geometry_last, nearest, openpi;
  int ops[4];
  float factors[4];
  float sharpness;
  int contrast;  // its place among the operations, or -1

  __device__ explicit Params(const float* row) {
#pragma unroll
    for (int i = 0; i < 6; ++i) place[i] = row[i];
    crop_x = row[6];
    crop_y = row[7];
    crop_w = row[8];
    crop_h = row[9];
    const int flags = static_cast<int>(row[10]);
    geometry_last = (flags & 1) != 0;
    nearest = (flags & 2) != 0;
    openpi = (flags & 4) != 0;
    contrast = -1;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ops[k] = static_cast<int>(row[11 + k]);
      factors[k] = row[15 + k];
      if (ops[k] == kContrast) contrast = k;
    }
    sharpness = row[19];
  }
  __device__ bool colours() const {
    return ops[0] != kNone || sharpness != 1.0f;
  }
};

struct Sizes {
  int in_height, in_width, out_height, out_width;
};

__device__ inline bool identity(const Params& p, const Sizes& s) {
  return p.place[0] == 1.0f && p.place[1] == 0.0f && p.place[2] == 0.0f && p.place[3] == 0.0f &&
         p.place[4] == 1.0f && p.place[5] == 0.0f && p.crop_x == 0.0f && p.crop_y == 0.0f &&
         p.crop_w == static_cast<float>(s.in_width) &&
         p.crop_h == static_cast<float>(s.in_height) && s.in_width == s.out_width &&
         s.in_height == s.out_height && !p.colours();
}

/// The source: floats in [-1, 1], or bytes.
template <class T>
struct Source {
  const T* data;
  int plane, width;
  bool to_unit;  // colours work on [0, 1]
  __device__ float black() const { return to_unit ? 0.0f : -1.0f; }
  __device__ Rgb operator()(int x, int y) const {
    const T* at = data + y * width + x;
    Rgb v{static_cast<float>(at[0]), static_cast<float>(at[plane]),
          static_cast<float>(at[2 * plane])};
    if (to_unit) v = {v.r * 0.5f + 0.5f, v.g * 0.5f + 0.5f, v.b * 0.5f + 0.5f};
    return v;
  }
};

template <>
struct Source<uint8_t> {
  const uint8_t* data;
  int plane, width;
  bool to_unit;  // always
  __device__ float black() const { return 0.0f; }
  __device__ Rgb operator()(int x, int y) const {
    const uint8_t* at = data + 3 * (y * width + x);
    return {__fdiv_rn(at[0], 255.0f), __fdiv_rn(at[1], 255.0f), __fdiv_rn(at[2], 255.0f)};
  }
};

struct Axis {
  int low, high;
  float part, cover;
};

__device__ inline Axis look(float q, float first, float part, int frame, bool nearest) {
  const float size = static_cast<float>(frame);
  Axis out;
  if (nearest) {
    const float rounded = rintf(q);
    out.cover = rounded >= 0.0f && rounded <= size - 1.0f ? 1.0f : 0.0f;
  } else {
    out.cover = unit(fminf(__fadd_rn(q, 1.0f), __fsub_rn(size, q)));
  }
  float p = __fadd_rn(__fmul_rn(__fadd_rn(q, 0.5f), __fdiv_rn(part, size)), __fsub_rn(first, 0.5f));
  p = fminf(fmaxf(p, first), first + part - 1.0f);
  if (nearest) {
    out.low = out.high = static_cast<int>(rintf(p));
    out.part = 0.0f;
    return out;
  }
  const float below = floorf(p);
  out.low = static_cast<int>(below);
  out.part = p - below;
  out.high = min(out.low + 1, static_cast<int>(first + part) - 1);
  return out;
}

__device__ inline float position(const float* m, int x, int y) {
  return __fadd_rn(
      __fadd_rn(__fmul_rn(m[0], static_cast<float>(x)), __fmul_rn(m[1], static_cast<float>(y))),
      m[2]);
}

__device__ inline Rgb mix(const Rgb& a, const Rgb& b, float part) {
  const float rest = 1.0f - part;
  return {rest * a.r + part * b.r, rest * a.g + part * b.g, rest * a.b + part * b.b};
}

/// The frame's pixel (x, y), where tap(ix, iy) gives the picture's pixels.
template <class Tap>
__device__ Rgb sample(const Params& p, const Sizes& s, int x, int y, float black, const Tap& tap) {
  const Axis h = look(position(p.place, x, y), p.crop_x, p.crop_w, s.out_width, p.nearest);
  const Axis v = look(position(p.place + 3, x, y), p.crop_y, p.crop_h, s.out_height, p.nearest);
  const float cover = h.cover * v.cover;
  if (cover == 0.0f) return {black, black, black};
  Rgb value;
  if (p.nearest) {
    value = tap(h.low, v.low);
  } else {
    // Rows and columns of share 0 need not be looked up: whole positions keep their bits.
    value = tap(h.low, v.low);
    if (h.part != 0.0f) value = mix(value, tap(h.high, v.low), h.part);
    if (v.part != 0.0f) {
      Rgb lower = tap(h.low, v.high);
      if (h.part != 0.0f) lower = mix(lower, tap(h.high, v.high), h.part);
      value = mix(value, lower, v.part);
    }
  }
  if (cover == 1.0f) return value;
  return {black + cover * (value.r - black), black + cover * (value.g - black),
          black + cover * (value.b - black)};
}

__device__ inline float grey(const Rgb& v, bool openpi) {
  if (openpi) return (v.r + v.g + v.b) * (1.0f / 3.0f);
  return 0.2989f * v.r + 0.587f * v.g + 0.114f * v.b;
}

__device__ inline Rgb clamped(const Rgb& v) {
  return {unit(v.r), unit(v.g), unit(v.b)};
}

__device__ inline Rgb turn_hue(const Rgb& v, float turns) {
  const float most = fmaxf(v.r, fmaxf(v.g, v.b)), least = fminf(v.r, fminf(v.g, v.b));
  const float spread = most - least;
  if (spread <= 0.0f) return v;
  const float rc = (most - v.r) / spread, gc = (most - v.g) / spread, bc = (most - v.b) / spread;
  float sector = bc - gc;
  if (most != v.r) sector = most == v.g ? 2.0f + rc - bc : 4.0f + gc - rc;
  float hue = sector / 6.0f + turns;
  hue -= floorf(hue);
  const float scaled = hue * 6.0f;
  const float whole = floorf(scaled);
  const float rest = scaled - whole;
  const float q = most - spread * rest, t = most - spread * (1.0f - rest);
  switch (static_cast<int>(whole) % 6) {
    case 0:
      return {most, t, least};
    case 1:
      return {q, most, least};
    case 2:
      return {least, most, t};
    case 3:
      return {least, q, most};
    case 4:
      return {t, least, most};
    default:
      return {most, least, q};
  }
}

/// The first `count` operations.
__device__ inline Rgb colour(const Params& p, Rgb v, int count, float mean) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (k >= count) break;
    const float factor = p.factors[k];
    switch (p.ops[k]) {
      case kBrightness:
        v = {factor * v.r, factor * v.g, factor * v.b};
        break;
      case kContrast:
      case kSaturation: {
        const float rest = (1.0f - factor) * (p.ops[k] == kContrast ? mean : grey(v, p.openpi));
        v = {factor * v.r + rest, factor * v.g + rest, factor * v.b + rest};
        break;
      }
      case kHue:
        v = turn_hue(clamped(v), factor);
        break;
      default:
        return v;
    }
    if (!p.openpi) v = clamped(v);
  }
  return v;
}

/// Pixel (x, y) of the picture behind tap() after sharpness.
template <class Tap>
__device__ Rgb sharp(const Params& p, int height, int width, int x, int y, const Tap& tap) {
  const Rgb here = tap(x, y);
  const bool border = x == 0 || y == 0 || x >= width - 1 || y >= height - 1;
  if (p.sharpness == 1.0f || border) return here;
  Rgb sum{5.0f * here.r, 5.0f * here.g, 5.0f * here.b};
#pragma unroll 1
  for (int dy = -1; dy <= 1; ++dy) {
#pragma unroll 1
    for (int dx = -1; dx <= 1; ++dx) {
      if (dx == 0 && dy == 0) continue;
      const Rgb v = tap(x + dx, y + dy);
      sum = {sum.r + v.r, sum.g + v.g, sum.b + v.b};
    }
  }
  const float f = p.sharpness, rest = (1.0f - p.sharpness) / 13.0f;
  Rgb out{f * here.r + rest * sum.r, f * here.g + rest * sum.g, f * here.b + rest * sum.b};
  if (!p.openpi) out = clamped(out);
  return out;
}

template <class T>
__device__ Source<T> source_of(const T* pictures, int64_t picture, const Params& p,
                               const Sizes& s) {
  const int plane = s.in_height * s.in_width;
  return {pictures + picture * 3 * plane, plane, s.in_width, p.colours()};
}

/// Sums of the grey before contrast, one per block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    augment_mean_kernel(const T* __restrict__ pictures, const float* __restrict__ params,
                        float* __restrict__ partial, Sizes s, int blocks) {
  await_previous_kernel();
  __shared__ float shared[32];
  const int64_t picture = blockIdx.x / blocks;
  const int block = static_cast<int>(blockIdx.x - picture * blocks);
  const Params p(params + picture * kAugmentNumbers);
  if (p.contrast < 0) return;
  const Source<T> source = source_of(pictures, picture, p, s);
  const bool moved = !p.geometry_last;
  const int width = moved ? s.out_width : s.in_width;
  const int pixels = width * (moved ? s.out_height : s.in_height);
  float sum = 0.0f;
  for (int i = block * kThreads + threadIdx.x; i < pixels; i += blocks * kThreads) {
    const int y = i / width, x = i - y * width;
    const Rgb base = moved ? sample(p, s, x, y, source.black(), source) : source(x, y);
    sum += grey(colour(p, base, p.contrast, 0.0f), p.openpi);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class T, class Out>
__global__ void __launch_bounds__(kThreads)
    augment_kernel(const T* __restrict__ pictures, const float* __restrict__ params,
                   const float* __restrict__ partial, Out* __restrict__ out, Sizes s, int blocks) {
  await_previous_kernel();
  __shared__ float shared[32];
  const int64_t picture = blockIdx.x / blocks;
  const int block = static_cast<int>(blockIdx.x - picture * blocks);
  const Params p(params + picture * kAugmentNumbers);
  float mean = 0.0f;
  if (p.contrast >= 0) {
    mean = threadIdx.x < blocks ? partial[picture * blocks + threadIdx.x] : 0.0f;
    mean = block_sum(mean, shared);
    const int pixels = p.geometry_last ? s.in_height * s.in_width : s.out_height * s.out_width;
    mean /= static_cast<float>(pixels);
  }
  const Source<T> source = source_of(pictures, picture, p, s);
  const bool same = identity(p, s);
  const bool in_unit = p.colours() || sizeof(T) == 1;
  const int plane = s.out_height * s.out_width;
  Out* target = out + picture * 3 * plane;
  for (int i = block * kThreads + threadIdx.x; i < plane; i += blocks * kThreads) {
    const int y = i / s.out_width, x = i - y * s.out_width;
    Rgb v;
    if (same) {
      v = source(x, y);
    } else if (p.geometry_last) {
      const auto coloured = [&](int ix, int iy) { return colour(p, source(ix, iy), 4, mean); };
      const auto sharpened = [&](int ix, int iy) {
        return clamped(sharp(p, s.in_height, s.in_width, ix, iy, coloured));
      };
      v = p.colours() ? sample(p, s, x, y, source.black(), sharpened)
                      : sample(p, s, x, y, source.black(), source);
    } else {
      const auto moved = [&](int ix, int iy) {
        return colour(p, sample(p, s, ix, iy, source.black(), source), 4, mean);
      };
      v = sharp(p, s.out_height, s.out_width, x, y, moved);
      if (p.colours()) v = clamped(v);
    }
    if (in_unit) v = {v.r * 2.0f - 1.0f, v.g * 2.0f - 1.0f, v.b * 2.0f - 1.0f};
    target[i] = static_cast<Out>(v.r);
    target[plane + i] = static_cast<Out>(v.g);
    target[2 * plane + i] = static_cast<Out>(v.b);
  }
}

template <class T, class Out>
cudaError_t launch(const AugmentArgs& a, cudaStream_t stream) {
  const int64_t blocks = augment_num_partials(a.in_height, a.in_width, a.out_height, a.out_width);
  const int64_t grid = a.num_pictures * blocks;
  if (grid > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const Sizes s{static_cast<int>(a.in_height), static_cast<int>(a.in_width),
                static_cast<int>(a.out_height), static_cast<int>(a.out_width)};
  launch_kernel(augment_mean_kernel<T>, static_cast<unsigned>(grid), kThreads, 0, stream,
                static_cast<const T*>(a.pictures), a.params, a.partial, s,
                static_cast<int>(blocks));
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  launch_kernel(augment_kernel<T, Out>, static_cast<unsigned>(grid), kThreads, 0, stream,
                static_cast<const T*>(a.pictures), a.params, a.partial, static_cast<Out*>(a.out), s,
                static_cast<int>(blocks));
  return cudaGetLastError();
}

bool too_large(int64_t height, int64_t width) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 3;
  return height > kLimit / width;
}

}  // namespace

int64_t augment_num_partials(int64_t in_height, int64_t in_width, int64_t out_height,
                             int64_t out_width) {
  const int64_t pixels = std::max(in_height * in_width, out_height * out_width);
  return std::clamp((pixels + kPixelsPerBlock - 1) / kPixelsPerBlock, int64_t{1}, kMaxPartials);
}

cudaError_t augment_pictures(const AugmentArgs& a, cudaStream_t stream) {
  if (a.num_pictures == 0) return cudaSuccess;
  if (a.in_height <= 0 || a.in_width <= 0 || a.out_height <= 0 || a.out_width <= 0 ||
      too_large(a.in_height, a.in_width) || too_large(a.out_height, a.out_width)) {
    return cudaErrorInvalidValue;
  }
  switch (a.type) {
    case PictureType::kFloat32:
      return launch<float, float>(a, stream);
    case PictureType::kBFloat16:
      return launch<__nv_bfloat16, __nv_bfloat16>(a, stream);
    case PictureType::kUint8:
      return launch<uint8_t, float>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace longship::kernels
