#pragma once
// Sums over processes whose values lie in one device's memory. No dispatcher operator: nothing
// differentiates through it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace longship::ops {

/// out = sum over p of parts[p] / divisor, in fp32 and in the order of `parts`, rounded once to
/// out's type. 1 to 8 parts; all contiguous, of out's number of elements, of one type, on one
/// device: fp32, or bf16 with a sum in bf16 or fp32. `out` may be one of them (its whole), but
/// overlap none otherwise. On CUDA at most `max_blocks` blocks of the device work at it; can be
/// captured. Throws ShapeError.
void sum_parts(const at::Tensor& out, const std::vector<at::Tensor>& parts, double divisor,
               int64_t max_blocks);

}  // namespace longship::ops
