#pragma once
// Random draws of training and inference, and the time grid of Euler sampling.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "models/common/flow_draws.h"
#include "models/pi05/config.h"

namespace longship::models {

/// Flow time [B] fp32 = scale * Beta(alpha, beta) + offset, keyed like draw_noise().
at::Tensor draw_time(const Pi05Config& config, uint64_t seed, uint64_t step,
                     std::span<const int64_t> sample_ids, at::Device device);

/// Times of the Euler steps, from 1 downwards. openpi adds dt in fp32 again and again, LoongForge
/// and lerobot round 1 + step * dt: through the fast phases of the time embedding the difference is
/// visible (about 1e-5).
std::vector<float> euler_times(int64_t num_steps, bool accumulate);

}  // namespace longship::models
