#pragma once
// Values divided by a divisor that is the same for all.

#include <cmath>

namespace longship::kernels {

/// value / divisor as value * (1 / divisor), which is the same bit for bit where the divisor is a
/// power of two whose reciprocal fp32 holds; kDivide: `scale` is the divisor, else its reciprocal.
template <bool kDivide>
__device__ __forceinline__ float scaled(float value, float scale) {
  return kDivide ? __fdiv_rn(value, scale) : value * scale;
}

inline bool reciprocal_is_exact(float divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5f && std::isfinite(1 / divisor);
}

}  // namespace longship::kernels
