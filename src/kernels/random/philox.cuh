#pragma once
// Philox4x32-10 on the device, word by word the same as philox4x32() of base/rng.h.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// One block: four random words of a counter and a key.
__device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    // The full products in one instruction each.
    const uint64_t x = uint64_t{counter.x} * 0xD2511F53u;
    const uint64_t z = uint64_t{counter.z} * 0xCD9E8D57u;
    const auto high_x = static_cast<uint32_t>(x >> 32), high_z = static_cast<uint32_t>(z >> 32);
    counter = make_uint4(high_z ^ counter.y ^ key.x, static_cast<uint32_t>(z),
                         high_x ^ counter.w ^ key.y, static_cast<uint32_t>(x));
    key = make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
  }
  return counter;
}

}  // namespace longship::kernels
