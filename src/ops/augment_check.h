#pragma once
// Argument checks shared by the implementations of augment_pictures. They throw ShapeError naming
// the operator, the argument, and the expected and given shapes.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

inline constexpr int64_t kAugmentNumbers = 20;  // per picture

struct AugmentShape {
  int64_t num_pictures = 0;
  int64_t in_height = 0;
  int64_t in_width = 0;
  bool bytes = false;
  at::ScalarType out_type = at::kFloat;
};

AugmentShape check_augment(const at::Tensor& pictures, const at::Tensor& params, int64_t height,
                           int64_t width);

}  // namespace longship::ops
