// CUDA launch of convert_into on the current stream.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/exchange/convert.h"
#include "ops/convert_internal.h"
#include "ops/cuda/launch.h"

namespace longship::ops {

void convert_into_device(const at::Tensor& target, const at::Tensor& source, bool add) {
  const c10::cuda::CUDAGuard guard(target.device());
  kernels::ConvertArgs args;
  args.target = target.mutable_data_ptr<float>();
  args.source = static_cast<const __nv_bfloat16*>(source.const_data_ptr());
  args.count = target.numel();
  args.add = add;
  check_launch("convert_into", kernels::convert_into(args, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace longship::ops
