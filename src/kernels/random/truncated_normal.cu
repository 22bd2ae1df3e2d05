// One thread per pair of numbers, which share one Philox block. Bound by double-precision log and
// sincos; runs once per model.
#include "kernels/random/truncated_normal.h"

#include "kernels/common/launch.cuh"
#include "kernels/random/philox.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

__device__ double to_uniform(uint32_t low, uint32_t high) {
  const uint64_t bits = low | (static_cast<uint64_t>(high) << 32);
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

/// Numbers 2 * block and 2 * block + 1 of the sequence.
__device__ void normal_pair(const TruncatedNormalArgs& a, uint64_t step, uint64_t block,
                            float out[2]) {
  const uint64_t mixed = mix(mix(mix(a.seed) ^ a.stream) ^ step);
  const uint2 key = make_uint2(static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32));
  const uint4 words =
      philox4x32(make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                            static_cast<uint32_t>(a.sample), static_cast<uint32_t>(a.sample >> 32)),
                 key);
  const double radius = sqrt(-2.0 * log(to_uniform(words.x, words.y)));
  double s, c;
  sincos(2.0 * 3.14159265358979323846 * to_uniform(words.z, words.w), &s, &c);
  out[0] = static_cast<float>(radius * c);
  out[1] = static_cast<float>(radius * s);
}

__global__ void truncated_normal_kernel(TruncatedNormalArgs a) {
  await_previous_kernel();
  const int64_t pairs = (a.count + 1) / 2;
  for (int64_t block = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; block < pairs;
       block += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    float values[2];
    normal_pair(a, 0, block, values);
    for (int i = 0; i < 2; ++i) {
      for (uint64_t step = 1; fabsf(values[i]) > static_cast<float>(a.limit); ++step) {
        float again[2];
        normal_pair(a, step, block, again);
        values[i] = again[i];
      }
      const int64_t at = 2 * block + i;
      if (at < a.count) a.out[at] = static_cast<float>(values[i] * a.std);
    }
  }
}

}  // namespace

cudaError_t truncated_normal(const TruncatedNormalArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const int64_t pairs = (args.count + 1) / 2;
  const int64_t wanted = (pairs + kThreads - 1) / kThreads;
  const unsigned blocks = static_cast<unsigned>(wanted < 132 * 16 ? wanted : 132 * 16);
  launch_kernel(truncated_normal_kernel, blocks, kThreads, 0, stream, args);
  return cudaGetLastError();
}

}  // namespace longship::kernels
