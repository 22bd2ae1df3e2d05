#pragma once
// Argument checks shared by the implementations of dropout_mask and dropout. They throw ShapeError
// naming the operator, the argument, and what was expected and given.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// The numbers behind a mask, the same for every device.
struct DropoutPlan {
  int64_t num_samples = 0;
  int64_t sample_size = 0;  // elements per sample
  uint32_t site = 0;
  uint32_t threshold = 0;   // words below are dropped
  double multiplier = 1.0;  // of what is kept; a value of the result's dtype
};

/// Shape [B, ...], keys [B], site, p and dtype.
DropoutPlan check_dropout_mask(const char* op, const at::Tensor& keys, int64_t site,
                               at::IntArrayRef shape, double p, at::ScalarType dtype);
/// The same for a mask like x, which must be contiguous and on the device of keys.
DropoutPlan check_dropout(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p);

}  // namespace longship::ops
