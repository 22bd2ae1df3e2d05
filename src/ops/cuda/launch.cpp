#include "ops/cuda/launch.h"

#include "base/error.h"

namespace longship::ops {

kernels::ElementType element_of(const char* op, const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return kernels::ElementType::kFloat32;
  if (x.scalar_type() == at::kBFloat16) return kernels::ElementType::kBFloat16;
  throw ShapeError(fmt::format("{}: dtype {} is not supported on CUDA; use float32 or bfloat16", op,
                               at::toString(x.scalar_type())));
}

void check_launch(const char* op, cudaError_t status) {
  LS_CHECK(status == cudaSuccess, DeviceError, "{}: {} ({})", op, cudaGetErrorString(status),
           cudaGetErrorName(status));
}

}  // namespace longship::ops
