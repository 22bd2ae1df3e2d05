#pragma once
// The CUDA half of ops/convert.h.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// fp32 from bf16, both on one CUDA device.
void convert_into_device(const at::Tensor& target, const at::Tensor& source, bool add);

}  // namespace longship::ops
