#pragma once
// The device's clock at a point of a stream.
// Host API of the CUDA kernel; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// *slot = nanoseconds of the device's global timer, when the work before it on `stream` is done.
cudaError_t stamp_time(int64_t* slot, cudaStream_t stream);

}  // namespace longship::kernels
