#pragma once
// Element types of the CPU oracles.

#include <ATen/core/Tensor.h>

#include <type_traits>

#include "base/error.h"

namespace longship::ops {

/// Calls fn(T{}, Acc{}) with the element type and the type of the arithmetic: fp32 for fp32 and
/// bf16, fp64 for fp64.
template <class Fn>
void dispatch_float(const char* op, at::ScalarType type, Fn&& fn) {
  switch (type) {
    case at::kFloat:
      return fn(float{}, float{});
    case at::kBFloat16:
      return fn(at::BFloat16{}, float{});
    case at::kDouble:
      return fn(double{}, double{});
    default:
      throw ShapeError(
          fmt::format("{}: dtype {} is not supported on the CPU; use float32, bfloat16 or float64",
                      op, at::toString(type)));
  }
}

template <class Acc>
constexpr at::ScalarType acc_type() {
  return std::is_same_v<Acc, double> ? at::kDouble : at::kFloat;
}

/// The type of the arithmetic for elements of `type`.
inline at::ScalarType acc_type_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace longship::ops
