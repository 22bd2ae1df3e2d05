#pragma once
// Activation recomputation: a unit keeps its inputs only and runs its forward pass again when its
// gradients are needed.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace longship::nn {

/// Runs `unit(inputs)` and returns its outputs. With `enabled` false this is a plain call. Else
/// nothing inside is kept: the backward pass calls `unit` again with the same inputs, so the unit
/// must be a pure function of them and of parameters (whose gradients are accumulated into .grad),
/// and everything it refers to must live until then. Values and gradients are bitwise the same as
/// without recomputation as long as the unit's operators repeat.
std::vector<at::Tensor> recompute(
    bool enabled, std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> unit,
    const std::vector<at::Tensor>& inputs);

}  // namespace longship::nn
