#pragma once
// The CUDA half of ops/stamp.h.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

void stamp_time_device(const at::Tensor& stamps, int64_t slot);

}  // namespace longship::ops
