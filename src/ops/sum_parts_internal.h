#pragma once
// The CUDA half of ops/sum_parts.h.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longship::ops {

void sum_parts_device(const at::Tensor& out, const std::vector<at::Tensor>& parts, double divisor,
                      int64_t max_blocks);

}  // namespace longship::ops
