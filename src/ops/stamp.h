#pragma once
// The time at a point of the device's work. No dispatcher operator.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// stamps[slot] = nanoseconds of a clock of the tensor's device, taken when the work before it on
/// the current stream is done. `stamps`: int64 [n], contiguous. Can be captured. Throws ShapeError.
void stamp_time(const at::Tensor& stamps, int64_t slot);

}  // namespace longship::ops
