// CUDA launch of rms_norm: checks, allocates, calls the kernel on the current stream.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "base/error.h"
#include "kernels/rms_norm/rms_norm.h"
#include "ops/rms_norm_check.h"

namespace longship::ops {
namespace {

kernels::ElementType element_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return kernels::ElementType::kFloat32;
  if (x.scalar_type() == at::kBFloat16) return kernels::ElementType::kBFloat16;
  throw ShapeError(
      fmt::format("rms_norm: dtype {} is not supported on CUDA; use float32 or bfloat16",
                  at::toString(x.scalar_type())));
}

void check_launch(cudaError_t status, const char* op) {
  LS_CHECK(status == cudaSuccess, DeviceError, "{}: {} ({})", op, cudaGetErrorString(status),
           cudaGetErrorName(status));
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cuda(const at::Tensor& x, const at::Tensor& scale,
                                                 const std::optional<at::Tensor>& shift,
                                                 double eps) {
  const RmsNormShape shape = check_rms_norm(x, scale, shift);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor scale_fp32 = scale.to(at::kFloat).contiguous();
  const at::Tensor shift_fp32 =
      shift.has_value() ? shift->to(at::kFloat).contiguous() : at::Tensor();
  at::Tensor y = at::empty_like(x);
  at::Tensor rstd = at::empty({shape.num_rows}, x.options().dtype(at::kFloat));
  kernels::RmsNormArgs args;
  args.x = x.const_data_ptr();
  args.scale = scale_fp32.const_data_ptr<float>();
  args.shift = shift_fp32.defined() ? shift_fp32.const_data_ptr<float>() : nullptr;
  args.y = y.mutable_data_ptr();
  args.rstd = rstd.mutable_data_ptr<float>();
  args.num_rows = shape.num_rows;
  args.num_groups = shape.num_groups;
  args.width = shape.width;
  args.eps = static_cast<float>(eps);
  args.element = element_of(x);
  check_launch(kernels::rms_norm_forward(args, c10::cuda::getCurrentCUDAStream()), "rms_norm");
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_backward_cuda(const at::Tensor& dy,
                                                                      const at::Tensor& x,
                                                                      const at::Tensor& scale,
                                                                      const at::Tensor& rstd,
                                                                      bool has_shift) {
  const RmsNormShape shape = check_rms_norm(x, scale, std::nullopt);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto options = x.options().dtype(at::kFloat);
  const at::Tensor dy_contiguous = dy.contiguous();
  const at::Tensor scale_fp32 = scale.to(at::kFloat).contiguous();
  at::Tensor dx = at::empty_like(x);
  at::Tensor dscale = at::empty(scale.sizes(), options);
  at::Tensor dshift = has_shift ? at::empty(scale.sizes(), options) : at::empty({0}, options);
  kernels::RmsNormBackwardArgs args;
  args.dy = dy_contiguous.const_data_ptr();
  args.x = x.const_data_ptr();
  args.scale = scale_fp32.const_data_ptr<float>();
  args.rstd = rstd.const_data_ptr<float>();
  args.dx = dx.mutable_data_ptr();
  args.dscale = dscale.mutable_data_ptr<float>();
  args.dshift = has_shift ? dshift.mutable_data_ptr<float>() : nullptr;
  args.num_rows = shape.num_rows;
  args.num_groups = shape.num_groups;
  args.width = shape.width;
  args.element = element_of(x);
  check_launch(kernels::rms_norm_backward(args, c10::cuda::getCurrentCUDAStream()),
               "rms_norm_backward");
  return {dx, dscale.to(scale.scalar_type()), dshift.to(scale.scalar_type())};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("rms_norm", rms_norm_cuda);
  m.impl("rms_norm_backward", rms_norm_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
