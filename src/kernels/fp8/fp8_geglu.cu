// GEGLU and its gradient, straight to FP8. Tile 128 rows x 128 columns of the hidden width, 256
// threads. Forward: 16 KiB of shared memory, 4 bytes read and 1 or 2 written an element. Backward:
// 32 KiB, 6 bytes read and 2 or 4 written. Bound by memory; about 25 and 45 instructions an element
// leave the arithmetic below the time of the transfers.
#include "kernels/common/launch.cuh"
#include "kernels/fp8/fp8_convert.cuh"
#include "kernels/fp8/fp8_geglu.cuh"

namespace longship::kernels {
namespace fp8 {
namespace {

template <class Format>
__global__ __launch_bounds__(kThreads,
                             3) void geglu_kernel(const __grid_constant__ Fp8GegluArgs args,
                                                  int num_partials) {
  await_previous_kernel();
  __shared__ uint4 stage_memory[kStageWords / 4];
  __shared__ unsigned warp_bits[2][kWarps];
  uint32_t* stage = reinterpret_cast<uint32_t*>(stage_memory);
  const int64_t hidden = args.hidden;
  const Tile tile = tile_of(blockIdx.x, args.rows, hidden);
  const __nv_bfloat16* gate_up =
      static_cast<const __nv_bfloat16*>(args.gate_up) + tile.row * 2 * hidden + tile.col;
  const float scale = find_scale(args.scale, num_partials, warp_bits[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.scale.inv_scale = 1.0f / scale;
  float amax = 0.0f;
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const Place place = place_of(pass);
    if (!exists(place, tile)) continue;
    uint4 gate[4], up[4];
    const __nv_bfloat16* in = gate_up + place.group * 4 * 2 * hidden + place.col;
    load4(in, 2 * hidden, gate);
    load4(in + hidden, 2 * hidden, up);
    uint32_t words[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float g[8], u[8];
      unpack(gate[i], g);
      unpack(up[i], u);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        g[k] = geglu(g[k], u[k]);
        amax = max_abs(amax, g[k]);
      }
      convert_row<Format>(g, scale, words[i]);
    }
    if (args.q != nullptr) {
      store_rows(args.q + (tile.row + place.group * 4) * hidden + tile.col + place.col, hidden,
                 words);
    }
    if (args.q_t != nullptr) stage_columns(stage, place, words);
  }
  const unsigned bits = __reduce_max_sync(kAllLanes, __float_as_uint(amax));
  if ((threadIdx.x & 31) == 0) warp_bits[1][threadIdx.x >> 5] = bits;
  __syncthreads();
  if (args.q_t != nullptr) {
    store_columns(stage, args.q_t + tile.col * args.rows + tile.row, args.rows, tile);
  }
  if (args.scale.record != nullptr && threadIdx.x == 0) {
    record_max(args.scale.record, joined_bits<kWarps>(warp_bits[1]));
  }
}

/// Gradients of 4 rows x 8 columns as bytes of d_gate and d_up. Returns the joined amax.
template <class Format>
__device__ inline float gradient_words(const uint4 (&dy)[4], const uint4 (&gate)[4],
                                       const uint4 (&up)[4], float scale, float amax,
                                       uint32_t (&gate_words)[4][2], uint32_t (&up_words)[4][2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float d[8], g[8], u[8];
    unpack(dy[i], d);
    unpack(gate[i], g);
    unpack(up[i], u);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const GegluGradient gradient = geglu_gradient(d[k], g[k], u[k]);
      g[k] = gradient.gate;
      u[k] = gradient.up;
      amax = max_abs(max_abs(amax, gradient.gate), gradient.up);
    }
    convert_row<Format>(g, scale, gate_words[i]);
    convert_row<Format>(u, scale, up_words[i]);
  }
  return amax;
}

template <class Format>
__global__ __launch_bounds__(kThreads, 2) void geglu_backward_kernel(
    const __grid_constant__ Fp8GegluArgs args, int num_partials) {
  await_previous_kernel();
  __shared__ uint4 stage_memory[2][kStageWords / 4];
  __shared__ unsigned warp_bits[2][kWarps];
  uint32_t* gate_stage = reinterpret_cast<uint32_t*>(stage_memory[0]);
  uint32_t* up_stage = reinterpret_cast<uint32_t*>(stage_memory[1]);
  const int64_t hidden = args.hidden;
  const Tile tile = tile_of(blockIdx.x, args.rows, hidden);
  const __nv_bfloat16* gate_up =
      static_cast<const __nv_bfloat16*>(args.gate_up) + tile.row * 2 * hidden + tile.col;
  const __nv_bfloat16* dy =
      static_cast<const __nv_bfloat16*>(args.dy) + tile.row * hidden + tile.col;
  const float scale = find_scale(args.scale, num_partials, warp_bits[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.scale.inv_scale = 1.0f / scale;
  float amax = 0.0f;
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    const Place place = place_of(pass);
    if (!exists(place, tile)) continue;
    uint4 d[4], gate[4], up[4];
    const int64_t row = place.group * 4;
    load4(dy + row * hidden + place.col, hidden, d);
    load4(gate_up + row * 2 * hidden + place.col, 2 * hidden, gate);
    load4(gate_up + row * 2 * hidden + hidden + place.col, 2 * hidden, up);
    uint32_t gate_words[4][2], up_words[4][2];
    amax = gradient_words<Format>(d, gate, up, scale, amax, gate_words, up_words);
    if (args.q != nullptr) {
      uint8_t* out = args.q + (tile.row + row) * 2 * hidden + tile.col + place.col;
      store_rows(out, 2 * hidden, gate_words);
      store_rows(out + hidden, 2 * hidden, up_words);
    }
    if (args.q_t != nullptr) {
      stage_columns(gate_stage, place, gate_words);
      stage_columns(up_stage, place, up_words);
    }
  }
  const unsigned bits = __reduce_max_sync(kAllLanes, __float_as_uint(amax));
  if ((threadIdx.x & 31) == 0) warp_bits[1][threadIdx.x >> 5] = bits;
  __syncthreads();
  if (args.q_t != nullptr) {
    uint8_t* out = args.q_t + tile.col * args.rows + tile.row;
    store_columns(gate_stage, out, args.rows, tile);
    store_columns(up_stage, out + hidden * args.rows, args.rows, tile);
  }
  if (args.scale.record != nullptr && threadIdx.x == 0) {
    record_max(args.scale.record, joined_bits<kWarps>(warp_bits[1]));
  }
}

using Kernel = void (*)(Fp8GegluArgs, int);

cudaError_t launch(const Fp8GegluArgs& args, Kernel kernel, cudaStream_t stream) {
  if (args.rows == 0 || args.hidden == 0) return cudaSuccess;
  int num_partials = 0;
  const cudaError_t status = find_geglu_amax(args, &num_partials, stream);
  if (status != cudaSuccess) return status;
  const unsigned blocks = static_cast<unsigned>(num_tiles(args.rows)) * num_tiles(args.hidden);
  launch_kernel(kernel, blocks, kThreads, 0, stream, args, num_partials);
  return cudaGetLastError();
}

}  // namespace
}  // namespace fp8

cudaError_t fp8_geglu_quantize(const Fp8GegluArgs& args, cudaStream_t stream) {
  Fp8GegluArgs forward = args;
  forward.dy = nullptr;
  return fp8::launch(
      forward,
      args.format == Fp8Format::kE4M3 ? fp8::geglu_kernel<fp8::E4M3> : fp8::geglu_kernel<fp8::E5M2>,
      stream);
}

cudaError_t fp8_geglu_backward_quantize(const Fp8GegluArgs& args, cudaStream_t stream) {
  return fp8::launch(args,
                     args.format == Fp8Format::kE4M3 ? fp8::geglu_backward_kernel<fp8::E4M3>
                                                     : fp8::geglu_backward_kernel<fp8::E5M2>,
                     stream);
}

}  // namespace longship::kernels
