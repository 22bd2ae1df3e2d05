#pragma once
// Rotary position embedding, half-split pairs.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// cos and sin of position * theta^(-2i/D). Shape = shape of positions + [1, D/2] (one axis for
/// heads), no gradient.
struct RopeTable {
  at::Tensor cos, sin;
};

/// positions: integer tensor of any shape. Angles in fp32 as openpi's torch code computes them;
/// `dtype` is what the table is rounded to: fp32, or the model's dtype to repeat the torch
/// references' bf16 rotation.
RopeTable rope_table(const at::Tensor& positions, int64_t head_dim, double theta,
                     at::ScalarType dtype);

/// x [positions..., H, D] -> rotated, dtype of x. Arithmetic in the table's dtype.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table);

}  // namespace longship::nn
