// CUDA launch of sum_parts on the current stream.
#include "kernels/exchange/sum_parts.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/launch.h"
#include "ops/sum_parts_internal.h"

namespace longship::ops {

void sum_parts_device(const at::Tensor& out, const std::vector<at::Tensor>& parts, double divisor,
                      int64_t max_blocks) {
  const c10::cuda::CUDAGuard guard(out.device());
  kernels::SumPartsArgs args;
  args.type = element_of("sum_parts", parts.front());
  args.out_type = element_of("sum_parts", out);
  args.out = out.mutable_data_ptr();
  for (const at::Tensor& part : parts) args.parts[args.num_parts++] = part.const_data_ptr();
  args.divisor = static_cast<float>(divisor);
  args.count = out.numel();
  args.max_blocks = static_cast<int>(max_blocks);
  check_launch("sum_parts", kernels::sum_parts(args, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace longship::ops
