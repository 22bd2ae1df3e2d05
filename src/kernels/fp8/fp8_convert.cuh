#pragma once
// Conversion of a bf16 tile that is in registers; shared by activations and weights.

#include "kernels/fp8/fp8_tile.cuh"

namespace longship::kernels::fp8 {

/// Partial column sums of a block: one row for each half warp.
constexpr int kSumRows = 2 * kWarps;

/// A thread's share of a tile: 2 passes of 4 rows x 8 columns.
struct TileInput {
  uint4 v[kPasses][4];

  __device__ void load(const __nv_bfloat16* x, int64_t stride, const Tile& tile) {
    const __nv_bfloat16* first = x + tile.row * stride + tile.col;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const Place place = place_of(pass);
      if (exists(place, tile)) {
        load4(first + static_cast<int64_t>(place.group) * 4 * stride + place.col, stride, v[pass]);
      } else {
        clear4(v[pass]);
      }
    }
  }

  __device__ unsigned amax_bits() const {
    PairMax amax;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int i = 0; i < 4; ++i) amax.add(v[pass][i]);
    }
    return amax.bits();
  }
};

/// Converts and writes the tile of a matrix [rows, cols]; q and q_t may be null. Afterwards every
/// thread may read `warp_bits` (amax of each warp) and `sums` (kSumRows x kFp8Tile).
template <class Format, bool kSums>
__device__ inline void convert_tile(const TileInput& in, float scale, uint8_t* q, uint8_t* q_t,
                                    int64_t rows, int64_t cols, const Tile& tile, uint32_t* stage,
                                    unsigned* warp_bits, float* sums) {
  const unsigned bits = __reduce_max_sync(kAllLanes, in.amax_bits());
  if ((threadIdx.x & 31) == 0) warp_bits[threadIdx.x >> 5] = bits;
  float sum[8] = {};
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const Place place = place_of(pass);
    uint32_t words[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v[8];
      unpack(in.v[pass][i], v);
      convert_row<Format>(v, scale, words[i]);
      if (kSums) {
#pragma unroll
        for (int k = 0; k < 8; ++k) sum[k] += v[k];
      }
    }
    if (q != nullptr && exists(place, tile)) {
      store_rows(q + (tile.row + place.group * 4) * cols + tile.col + place.col, cols, words);
    }
    if (q_t != nullptr) stage_columns(stage, place, words);
  }
  if (kSums) {
    const Place place = place_of(0);  // its group is the number of the half warp
    float4* out = reinterpret_cast<float4*>(sums + place.group * kFp8Tile + place.col);
    out[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    out[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
  }
  __syncthreads();
  if (q_t != nullptr) store_columns(stage, q_t + tile.col * rows + tile.row, rows, tile);
}

/// Column sums of the tile, in the order of its rows of partial sums.
__device__ inline void store_sums(const float* sums, float* out, const Tile& tile) {
  const int column = threadIdx.x;
  if (column >= tile.cols) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSumRows; ++i) sum += sums[i * kFp8Tile + column];
  out[column] = sum;
}

}  // namespace longship::kernels::fp8
