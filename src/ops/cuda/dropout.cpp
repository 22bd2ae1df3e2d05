// CUDA launches of dropout_mask and dropout: check, allocate, call the kernel on the current
// stream.
#include "ops/dropout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "kernels/random/dropout.h"
#include "ops/cuda/dropout_site.h"
#include "ops/cuda/launch.h"
#include "ops/dropout_check.h"

namespace longship::ops {
namespace {

/// `x` null for the mask alone.
void launch(const char* op, const DropoutPlan& plan, const void* x, const at::Tensor& keys,
            at::Tensor& y) {
  kernels::DropoutArgs args;
  args.x = x;
  args.keys = keys.const_data_ptr<int64_t>();
  args.y = y.mutable_data_ptr();
  args.num_samples = plan.num_samples;
  args.sample_size = plan.sample_size;
  args.site = dropout_site(plan);
  args.element = element_of(op, y);
  check_launch(op, kernels::dropout(args, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor dropout_mask_cuda(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                             at::ScalarType dtype) {
  const DropoutPlan plan = check_dropout_mask("dropout_mask", keys, site, shape, p, dtype);
  const c10::cuda::CUDAGuard guard(keys.device());
  at::Tensor mask = at::empty(shape, keys.options().dtype(dtype));
  launch("dropout_mask", plan, nullptr, keys, mask);
  return mask;
}

at::Tensor dropout_cuda(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  const DropoutPlan plan = check_dropout(x, keys, site, p);
  const c10::cuda::CUDAGuard guard(x.device());
  at::Tensor y = at::empty_like(x);
  launch("dropout", plan, x.const_data_ptr(), keys, y);
  return y;
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("dropout_mask", dropout_mask_cuda);
  m.impl("dropout", dropout_cuda);
}

}  // namespace
}  // namespace longship::ops
