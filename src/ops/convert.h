#pragma once
// Values into a buffer of another type. No dispatcher operator: nothing differentiates through it.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// target = source, or += with `add`, in target's type, rounding once. Contiguous tensors of equal
/// numel on one device, fp32 or bf16. fp32 from bf16 on CUDA is our kernel, the rest the library's.
/// Throws ShapeError.
void convert_into(const at::Tensor& target, const at::Tensor& source, bool add);

}  // namespace longship::ops
