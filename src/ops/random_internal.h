#pragma once
// The CUDA half of ops/random.h.

#include <ATen/core/Tensor.h>

#include "base/rng.h"

namespace longship::ops {

void fill_truncated_normal_device(at::Tensor& out, const RngKey& key, double std, double limit);

}  // namespace longship::ops
