#pragma once
// Values into a buffer of another type. No dispatcher operator: nothing differentiates through it.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// target = source, or += with `add`, in target's type, rounding once. On one device, fp32 or bf16;
/// target contiguous; source contiguous and of equal numel, or of equal shape. fp32 from contiguous
/// bf16 on CUDA is our kernel, the rest the library's. Throws ShapeError.
void convert_into(const at::Tensor& target, const at::Tensor& source, bool add);

}  // namespace longship::ops
