#pragma once
// Random draws of training and inference, and the time grid of Euler sampling.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "models/pi05/config.h"

namespace longship::models {

/// Standard normal [B, A, D] fp32 on `device`; row i depends on (seed, stream, step, sample_ids[i])
/// only.
at::Tensor draw_noise(uint64_t seed, RngStream stream, uint64_t step,
                      std::span<const int64_t> sample_ids, int64_t horizon, int64_t dim,
                      at::Device device);

/// Flow time [B] fp32 = scale * Beta(alpha, beta) + offset, keyed the same way. beta = 1:
/// u^(1/alpha), the inverse of the distribution function x^alpha. Otherwise Joehnk's exact
/// rejection: x = u^(1/alpha), y = v^(1/beta), accepted when x + y <= 1, result x / (x + y).
at::Tensor draw_time(const Pi05Config& config, uint64_t seed, uint64_t step,
                     std::span<const int64_t> sample_ids, at::Device device);

/// Times of the Euler steps, from 1 downwards. openpi adds dt in fp32 again and again, LoongForge
/// and lerobot round 1 + step * dt: through the fast phases of the time embedding the difference is
/// visible (about 1e-5).
std::vector<float> euler_times(int64_t num_steps, bool accumulate);

}  // namespace longship::models
