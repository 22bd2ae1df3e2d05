#pragma once
// The sum of what several processes hold, once all of it lies in this device's memory.
// Host API of the CUDA kernel; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

constexpr int kMaxParts = 8;

/// out[i] = sum over p = 0, 1, ..., num_parts - 1 of parts[p][i] / divisor, in fp32 and in this
/// order, rounded once to out's type. Parts of one type; fp32 parts have an fp32 sum. Any
/// alignment, 16 bytes is fast. `out` may be one of the parts where it has their type, but overlaps
/// none of them otherwise.
struct SumPartsArgs {
  ElementType type = ElementType::kFloat32;      // of the parts
  ElementType out_type = ElementType::kFloat32;  // of the sum
  void* out = nullptr;
  const void* parts[kMaxParts] = {};
  int num_parts = 0;
  float divisor = 1;
  int64_t count = 0;
  int max_blocks = 1;  // more are never launched: the rest of the device has other work
};

/// Asynchronous on `stream`. Bound by memory: an element of every part and of the sum.
cudaError_t sum_parts(const SumPartsArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
