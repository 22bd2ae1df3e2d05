#include "ops/cuda/norm_args.h"

#include <ATen/ops/empty.h>

#include "base/error.h"

namespace longship::ops::cuda {

kernels::ElementType element_of(const char* op, const char* name, const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return kernels::ElementType::kFloat32;
  if (tensor.scalar_type() == at::kBFloat16) return kernels::ElementType::kBFloat16;
  throw ShapeError(
      fmt::format("{}: {} has dtype {}, not supported on CUDA; use float32 or bfloat16", op, name,
                  at::toString(tensor.scalar_type())));
}

at::Tensor readable(const std::optional<at::Tensor>& param) {
  if (!param.has_value()) return at::Tensor();
  return param->stride(-1) == 1 || param->size(-1) <= 1 ? *param : param->contiguous();
}

kernels::ParamRows param_rows(const char* op, const char* name, const at::Tensor& readable) {
  kernels::ParamRows rows;
  if (!readable.defined()) return rows;
  rows.element = element_of(op, name, readable);
  rows.data = readable.const_data_ptr();
  rows.row_stride = readable.dim() == 2 && readable.size(0) > 1 ? readable.stride(0) : 0;
  return rows;
}

at::Tensor new_gradient(const std::optional<at::Tensor>& param, const at::Tensor& otherwise) {
  return param.has_value() ? at::empty(param->sizes(), param->options())
                           : at::empty({0}, otherwise.options());
}

kernels::ParamGradient param_gradient(const std::optional<at::Tensor>& param,
                                      const at::Tensor& gradient) {
  kernels::ParamGradient result;
  if (!param.has_value()) return result;
  result.data = gradient.mutable_data_ptr();
  result.num_groups = gradient.dim() == 2 ? gradient.size(0) : 1;
  result.row_stride = gradient.dim() == 2 ? gradient.stride(0) : 0;
  result.element = gradient.scalar_type() == at::kFloat ? kernels::ElementType::kFloat32
                                                        : kernels::ElementType::kBFloat16;
  return result;
}

at::Tensor workspace(int64_t bytes, const at::Tensor& like) {
  return bytes == 0 ? at::Tensor() : at::empty({bytes}, like.options().dtype(at::kByte));
}

}  // namespace longship::ops::cuda
