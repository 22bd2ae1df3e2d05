// CUDA launch of stamp_time on the current stream.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/exchange/stamp.h"
#include "ops/cuda/launch.h"
#include "ops/stamp_internal.h"

namespace longship::ops {

void stamp_time_device(const at::Tensor& stamps, int64_t slot) {
  const c10::cuda::CUDAGuard guard(stamps.device());
  check_launch("stamp_time", kernels::stamp_time(stamps.mutable_data_ptr<int64_t>() + slot,
                                                 c10::cuda::getCurrentCUDAStream()));
}

}  // namespace longship::ops
