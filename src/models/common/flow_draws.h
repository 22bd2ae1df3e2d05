#pragma once
// Random draws of flow-matching families: keyed by seed, step and sample, whatever the order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "base/rng.h"

namespace longship::models {

/// Standard normal [B, A, D] fp32 on `device`; row i depends on (seed, stream, step, sample_ids[i])
/// only.
at::Tensor draw_noise(uint64_t seed, RngStream stream, uint64_t step,
                      std::span<const int64_t> sample_ids, int64_t horizon, int64_t dim,
                      at::Device device);

/// Beta(alpha, beta). beta = 1: u^(1/alpha), the inverse of the distribution function x^alpha.
/// Otherwise Joehnk's exact rejection: x = u^(1/alpha), y = v^(1/beta), accepted when x + y <= 1,
/// result x / (x + y).
double draw_beta(double alpha, double beta, const RngKey& key);

}  // namespace longship::models
