#pragma once
// Launches of kernels that follow each other on a stream. Such a kernel may be put onto the device
// while the one before it is still running (programmatic dependent launch) and waits there: the
// half a microsecond between two kernels, a twentieth of a step of small ones, is saved. A stream's
// order is kept, because every kernel launched so begins with await_previous_kernel().
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

#include "kernels/common/launch.h"

namespace longship::kernels {

/// First statement of every kernel that launch_kernel() starts, passed by all of its threads. Lets
/// the next kernel come onto the device (once all blocks of this one are there), then waits until
/// everything before this kernel is done and its writes are seen.
__device__ inline void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// kernel<<<grid, block, shared_bytes, stream>>>(args...); errors are in cudaGetLastError().
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... args) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = early_launch() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(args)...);
}

}  // namespace longship::kernels
