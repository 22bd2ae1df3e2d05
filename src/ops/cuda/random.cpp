#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/random/truncated_normal.h"
#include "ops/random_internal.h"

namespace longship::ops {

void fill_truncated_normal_device(at::Tensor& out, const RngKey& key, double std, double limit) {
  LS_CHECK(key.step == 0, InternalError, "fill_truncated_normal_: the key's step must be 0");
  const c10::cuda::CUDAGuard guard(out.device());
  kernels::TruncatedNormalArgs args;
  args.out = out.mutable_data_ptr<float>();
  args.count = out.numel();
  args.seed = key.seed;
  args.stream = key.stream;
  args.sample = key.sample;
  args.std = std;
  args.limit = limit;
  const cudaError_t status = kernels::truncated_normal(args, c10::cuda::getCurrentCUDAStream());
  LS_CHECK(status == cudaSuccess, DeviceError, "fill_truncated_normal_: {}",
           cudaGetErrorString(status));
}

}  // namespace longship::ops
