#pragma once
// Multipliers of a dropout mask on the device, for the kernels that draw them on the way: element i
// of a sample is word i % 4 of Philox block i / 4.
#include "kernels/random/dropout.h"
#include "kernels/random/philox.cuh"

namespace longship::kernels {

/// Elements that a thread draws at once: two Philox blocks, whose rounds do not wait for each
/// other.
constexpr int kDropoutRun = 8;

__device__ __forceinline__ uint4 dropout_words(const DropoutSite& site, int64_t key,
                                               uint64_t block) {
  return philox4x32(make_uint4(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                               site.site, site.purpose),
                    make_uint2(static_cast<uint32_t>(key),
                               static_cast<uint32_t>(static_cast<uint64_t>(key) >> 32)));
}

/// Multipliers of elements 8 run to 8 run + 7 of the sample with this key.
__device__ __forceinline__ void dropout_run(const DropoutSite& site, int64_t key, uint32_t run,
                                            float (&m)[kDropoutRun]) {
  constexpr int kWords = 4;
#pragma unroll
  for (int part = 0; part < kDropoutRun / kWords; ++part) {
    const uint4 words = dropout_words(site, key, uint64_t{run} * (kDropoutRun / kWords) + part);
    float* out = m + part * kWords;
    out[0] = words.x < site.threshold ? 0.0f : site.multiplier;
    out[1] = words.y < site.threshold ? 0.0f : site.multiplier;
    out[2] = words.z < site.threshold ? 0.0f : site.multiplier;
    out[3] = words.w < site.threshold ? 0.0f : site.multiplier;
  }
}

/// The multiplier of one element; draws a whole block for it.
__device__ __forceinline__ float dropout_at(const DropoutSite& site, int64_t key, uint64_t i) {
  const uint4 words = dropout_words(site, key, i / 4);
  const uint32_t part = static_cast<uint32_t>(i) & 3u;
  const uint32_t word = part == 0 ? words.x : part == 1 ? words.y : part == 2 ? words.z : words.w;
  return word < site.threshold ? 0.0f : site.multiplier;
}

}  // namespace longship::kernels
