#pragma once
// bf16 values into an fp32 buffer: gradients on their way to other processes.
// Host API of the CUDA kernel; plain pointers, no tensor library.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// target[i] = source[i], or += with `add`. The two do not overlap; any alignment, 16 bytes is
/// fast.
struct ConvertArgs {
  float* target = nullptr;
  const __nv_bfloat16* source = nullptr;
  int64_t count = 0;
  bool add = false;
};

/// Asynchronous on `stream`. Bound by memory: 6 bytes an element, 10 with `add`.
cudaError_t convert_into(const ConvertArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
