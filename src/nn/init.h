#pragma once
// Random initialisation that depends on the seed and the parameter's name only, not on order or
// device.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace longship::nn {

/// Fills `parameter` in place with std * n, n normal truncated at 3 (drawn again until inside),
/// from the Philox stream keyed by (seed, name). Same values on every device and dtype up to
/// rounding. Does nothing on meta tensors.
void init_normal(at::Tensor& parameter, std::string_view name, uint64_t seed, double std);
void init_constant(at::Tensor& parameter, double value);

}  // namespace longship::nn
