#pragma once
// Argument checks shared by the CPU, CUDA and Meta implementations of rms_norm.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace longship::ops {

struct RmsNormShape {
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
};

/// Throws ShapeError naming the operator, the argument, and the expected and given shapes.
RmsNormShape check_rms_norm(const at::Tensor& x, const at::Tensor& scale,
                            const std::optional<at::Tensor>& shift);

}  // namespace longship::ops
