#pragma once
// Sums over a warp and a block, in a fixed order, so that two runs give the same bits.

namespace longship::kernels {

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

/// Sum over the block, returned to every thread. `shared` holds 32 floats. blockDim.x is a multiple
/// of 32.
__device__ inline float block_sum(float value, float* shared) {
  value = warp_sum(value);
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  __syncthreads();
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  const int num_warps = blockDim.x >> 5;
  value = lane < num_warps ? shared[lane] : 0.0f;
  return warp_sum(value);
}

}  // namespace longship::kernels
