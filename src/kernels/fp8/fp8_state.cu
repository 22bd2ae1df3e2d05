// Step of all delayed-scaling states at once: one warp a state. A few hundred states of 72 bytes:
// the time of a launch.
#include "kernels/common/launch.cuh"
#include "kernels/fp8/fp8_tile.cuh"

namespace longship::kernels {
namespace fp8 {
namespace {

constexpr int kStatesPerBlock = 4;

__global__ void update_kernel(float* states, int64_t num_states, int history) {
  await_previous_kernel();
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kStatesPerBlock + (threadIdx.x >> 5);
  if (index >= num_states) return;
  const int lane = threadIdx.x & 31;
  float* row = states + index * (2 + history);
  float* amaxes = row + 2;
  unsigned bits = 0;
  // From the oldest entries on, so that each is read before its younger neighbour replaces it.
  for (int base = (history - 1) / 32 * 32; base >= 0; base -= 32) {
    const int i = base + lane;
    const float amax = i < history ? amaxes[i] : 0.0f;
    __syncwarp();
    if (isfinite(amax)) bits = max(bits, __float_as_uint(amax));
    if (i + 1 < history) amaxes[i + 1] = amax;
    __syncwarp();
  }
  bits = __reduce_max_sync(kAllLanes, bits);
  if (lane == 0) {
    amaxes[0] = 0.0f;
    row[0] = bits == 0 ? 0.0f : scale_of(__uint_as_float(bits), row[1]);
  }
}

}  // namespace
}  // namespace fp8

cudaError_t fp8_update_states(float* states, int64_t num_states, int64_t history,
                              cudaStream_t stream) {
  if (num_states == 0) return cudaSuccess;
  const unsigned blocks =
      static_cast<unsigned>((num_states + fp8::kStatesPerBlock - 1) / fp8::kStatesPerBlock);
  launch_kernel(fp8::update_kernel, blocks, fp8::kStatesPerBlock * 32, 0, stream, states,
                num_states, static_cast<int>(history));
  return cudaGetLastError();
}

}  // namespace longship::kernels
