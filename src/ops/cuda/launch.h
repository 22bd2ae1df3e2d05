#pragma once
// Between tensors and kernel launches.

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include "kernels/common/dtype.h"

namespace longship::ops {

/// The kernels' name of the dtype of x; throws ShapeError for what they do not have.
kernels::ElementType element_of(const char* op, const at::Tensor& x);
/// Throws DeviceError if the launch was refused.
void check_launch(const char* op, cudaError_t status);

}  // namespace longship::ops
