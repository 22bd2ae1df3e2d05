#pragma once
// The dropout of the action head: masks from one key per sample, the same whenever they are asked
// for.

#include <ATen/core/Tensor.h>

#include "models/groot/action_head.h"

namespace longship::models {

/// keys [B] int64 on the head's device. `head` must outlive the result.
GrootDropout groot_dropout(const GrootActionHead& head, const at::Tensor& keys);

}  // namespace longship::models
