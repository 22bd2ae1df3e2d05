#pragma once
// The pieces of the conversion kernels: a block of 256 threads converts a tile of 128 x 128.
//
// A thread handles 4 rows x 8 columns at a time, twice over the height of the tile: 16 lanes read a
// row of 256 bytes and write its 128 converted bytes. For the transposed copy it turns its 4 x 8
// bytes in registers into 8 words, one per column, and puts them into the stage: 128 columns of 32
// words. Eight lanes then write the 128 bytes of a column. Words are swizzled so that both sides
// are free of bank conflicts: word w of column n stands at w ^ 2 * (n / 8). On the way in, the 16
// lanes of a row have different n / 8 and the two rows of a warp differ in bit 0 of w; on the way
// out, 8 lanes read a whole column.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/fp8/fp8.h"

namespace longship::kernels::fp8 {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPasses = 2;  // over the height of a tile
constexpr int kStageWords = kFp8Tile * kFp8Tile / 4;
constexpr unsigned kAllLanes = 0xffffffffu;

struct E4M3 {
  static constexpr __nv_fp8_interpretation_t kInterpretation = __NV_E4M3;
};
struct E5M2 {
  static constexpr __nv_fp8_interpretation_t kInterpretation = __NV_E5M2;
};

__device__ inline float low_half(uint32_t bf16x2) {
  return __uint_as_float(bf16x2 << 16);
}
__device__ inline float high_half(uint32_t bf16x2) {
  return __uint_as_float(bf16x2 & 0xffff0000u);
}

/// 8 bf16 as 8 floats.
__device__ inline void unpack(const uint4& in, float (&v)[8]) {
  v[0] = low_half(in.x), v[1] = high_half(in.x);
  v[2] = low_half(in.y), v[3] = high_half(in.y);
  v[4] = low_half(in.z), v[5] = high_half(in.z);
  v[6] = low_half(in.w), v[7] = high_half(in.w);
}

// Maxima keep NaN, so that one bad element shows in amax. Bits of absolute values order like the
// values, with NaN above infinity.

__device__ inline float max_abs(float amax, float v) {
  float out;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(out) : "f"(amax), "f"(fabsf(v)));
  return out;
}

/// Running maximum of |x| over pairs of bf16.
struct PairMax {
  __nv_bfloat162 value{};

  __device__ void add(uint32_t pair) {
    const uint32_t absolute = pair & 0x7fff7fffu;
    value = __hmax2_nan(value, *reinterpret_cast<const __nv_bfloat162*>(&absolute));
  }
  __device__ void add(const uint4& v) { add(v.x), add(v.y), add(v.z), add(v.w); }
  __device__ unsigned bits() const {
    return max(__float_as_uint(__low2float(value)), __float_as_uint(__high2float(value)));
  }
};

/// Largest of the bits that the warps have left, a word each.
template <int kNumWarps>
__device__ inline unsigned joined_bits(const unsigned* warp_bits) {
  unsigned result = 0;
#pragma unroll
  for (int i = 0; i < kNumWarps; ++i) result = max(result, warp_bits[i]);
  return result;
}

/// Largest of the threads' bits, in every thread. `warp_bits` holds a word per warp. Every thread
/// of the block must call it.
template <int kNumThreads>
__device__ inline unsigned block_max(unsigned bits, unsigned* warp_bits) {
  bits = __reduce_max_sync(kAllLanes, bits);
  if ((threadIdx.x & 31) == 0) warp_bits[threadIdx.x >> 5] = bits;
  __syncthreads();
  return joined_bits<kNumThreads / 32>(warp_bits);
}

/// Joins a block's amax to the record. Most blocks find a larger one there and leave the atomic
/// out.
__device__ inline void record_max(float* record, unsigned bits) {
  unsigned* place = reinterpret_cast<unsigned*>(record);
  if (bits > __ldcg(place)) atomicMax(place, bits);
}

/// NaN and infinity in amax give a scale with which every value becomes NaN.
__device__ inline float scale_of(float amax, float target) {
  constexpr float kLargest = 1.2676506e30f;  // 2^100
  if (amax == 0.0f) return 1.0f;
  const float scale = target / amax;
  return scale > kLargest ? kLargest : scale;
}

/// The scale of the matrix, the same in every thread of a block of kThreads. `warp_bits` holds a
/// word per warp.
__device__ inline float find_scale(const Fp8ScaleArgs& args, int num_partials,
                                   unsigned* warp_bits) {
  float target = args.target;
  if (args.state != nullptr) {
    const float scale = args.state[0];
    if (scale != 0.0f) return scale;
    target = args.state[1];
  }
  unsigned bits = 0;
  for (int i = threadIdx.x; i < num_partials; i += kThreads) {
    bits = max(bits, __float_as_uint(args.partials[i]));
  }
  return scale_of(__uint_as_float(block_max<kThreads>(bits, warp_bits)), target);
}

/// v * scale; NaN where v is not finite: v - v is +0 or NaN, and adding -0 changes nothing.
__device__ inline float scaled(float v, float scale) {
  return fmaf(v, scale, -(v - v));
}

template <class Format>
__device__ inline uint32_t convert4(float a, float b, float c, float d) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, Format::kInterpretation);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, Format::kInterpretation);
  return low | (high << 16);
}

/// 8 values of a row as 8 bytes.
template <class Format>
__device__ inline void convert_row(const float (&v)[8], float scale, uint32_t (&words)[2]) {
  words[0] = convert4<Format>(scaled(v[0], scale), scaled(v[1], scale), scaled(v[2], scale),
                              scaled(v[3], scale));
  words[1] = convert4<Format>(scaled(v[4], scale), scaled(v[5], scale), scaled(v[6], scale),
                              scaled(v[7], scale));
}

/// A tile of a matrix [rows, cols].
struct Tile {
  int64_t row, col;  // first
  int rows, cols;    // that exist, multiples of 16, at most kFp8Tile
};

__host__ __device__ inline int num_tiles(int64_t size) {
  return static_cast<int>((size + kFp8Tile - 1) / kFp8Tile);
}

/// Tiles go down over 8 rows of tiles and then to the right, so that the blocks that run together
/// write runs of 1 KiB of the transposed copy and read and write longer ones of the rows.
__device__ inline Tile tile_of(unsigned index, int64_t rows, int64_t cols) {
  constexpr unsigned kBand = 8;
  const unsigned tiles_down = num_tiles(rows);
  const unsigned tiles_across = num_tiles(cols);
  const unsigned band = index / (kBand * tiles_across);
  const unsigned rest = index - band * kBand * tiles_across;
  const unsigned height = min(kBand, tiles_down - band * kBand);
  Tile tile;
  tile.row = static_cast<int64_t>(band * kBand + rest % height) * kFp8Tile;
  tile.col = static_cast<int64_t>(rest / height) * kFp8Tile;
  tile.rows = static_cast<int>(min(static_cast<int64_t>(kFp8Tile), rows - tile.row));
  tile.cols = static_cast<int>(min(static_cast<int64_t>(kFp8Tile), cols - tile.col));
  return tile;
}

/// A thread's place in a pass over the tile.
struct Place {
  int group;  // of 4 rows, 0 ... 31
  int col;    // first of 8
};

__device__ inline Place place_of(int pass) {
  const int lane = threadIdx.x & 31;
  return {pass * (kFp8Tile / 4 / kPasses) + static_cast<int>(threadIdx.x >> 5) * 2 + (lane >> 4),
          (lane & 15) * 8};
}

__device__ inline bool exists(const Place& place, const Tile& tile) {
  return place.group * 4 < tile.rows && place.col < tile.cols;
}

/// 4 rows x 8 columns of bf16 at `in`, whose rows are `stride` elements apart.
__device__ inline void load4(const __nv_bfloat16* in, int64_t stride, uint4 (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = __ldg(reinterpret_cast<const uint4*>(in + i * stride));
}

__device__ inline void clear4(uint4 (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = make_uint4(0, 0, 0, 0);
}

/// Writes 4 rows x 8 bytes.
__device__ inline void store_rows(uint8_t* out, int64_t stride, const uint32_t (&words)[4][2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    *reinterpret_cast<uint2*>(out + i * stride) = make_uint2(words[i][0], words[i][1]);
  }
}

/// Puts 4 rows x 8 bytes into the stage, one word per column.
__device__ inline void stage_columns(uint32_t* stage, const Place& place,
                                     const uint32_t (&words)[4][2]) {
  uint32_t* column = stage + place.col * (kFp8Tile / 4) + (place.group ^ (place.col >> 2));
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // Bytes of rows 0, 1 and 2, 3 interleaved, then their halves.
    const uint32_t top01 = __byte_perm(words[0][half], words[1][half], 0x5140);
    const uint32_t top23 = __byte_perm(words[0][half], words[1][half], 0x7362);
    const uint32_t bottom01 = __byte_perm(words[2][half], words[3][half], 0x5140);
    const uint32_t bottom23 = __byte_perm(words[2][half], words[3][half], 0x7362);
    uint32_t* out = column + half * 4 * (kFp8Tile / 4);
    out[0 * (kFp8Tile / 4)] = __byte_perm(top01, bottom01, 0x5410);
    out[1 * (kFp8Tile / 4)] = __byte_perm(top01, bottom01, 0x7632);
    out[2 * (kFp8Tile / 4)] = __byte_perm(top23, bottom23, 0x5410);
    out[3 * (kFp8Tile / 4)] = __byte_perm(top23, bottom23, 0x7632);
  }
}

/// Writes the stage to the transposed matrix; `out` is the place of the tile's first element,
/// columns of the tile are `stride` bytes apart. After a barrier.
__device__ inline void store_columns(const uint32_t* stage, uint8_t* out, int64_t stride,
                                     const Tile& tile) {
#pragma unroll
  for (int i = 0; i < kStageWords / 4 / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int column = index >> 3;
    const int segment = index & 7;  // of 16 rows
    const int swizzle = (column >> 3) * 2;
    if (column >= tile.cols || segment * 16 >= tile.rows) continue;
    uint4 v = *reinterpret_cast<const uint4*>(stage + column * (kFp8Tile / 4) +
                                              4 * (segment ^ (swizzle >> 2)));
    if ((swizzle & 2) != 0) v = make_uint4(v.z, v.w, v.x, v.y);
    *reinterpret_cast<uint4*>(out + column * stride + segment * 16) = v;
  }
}

// Launches of the pass that looks for amax; fp8_amax.cu. Return the number of partials in
// `num_partials`. Nothing is read where the state already has a scale.
cudaError_t find_amax(const void* x, int64_t num_elements, ElementType element,
                      const Fp8ScaleArgs& scale, int* num_partials, cudaStream_t stream);
cudaError_t find_geglu_amax(const Fp8GegluArgs& args, int* num_partials, cudaStream_t stream);

}  // namespace longship::kernels::fp8
