#pragma once
// Random fills that do not depend on the device. No dispatcher operators: nothing differentiates
// through them.

#include <ATen/core/Tensor.h>

#include "base/rng.h"

namespace longship::ops {

/// out (fp32, contiguous, CPU or CUDA) = std * n with n standard normal, |n| <= limit: element i is
/// number i of `key`'s sequence, or, while that is outside, number i of the sequence of step 1, 2,
/// ... of the same key. Throws ShapeError for other tensors.
void fill_truncated_normal_(at::Tensor& out, const RngKey& key, double std, double limit);

}  // namespace longship::ops
