#pragma once
// What a model attaches to a stack of layers: how one layer is run, and who looks at tensors on the
// way.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "nn/unit.h"

namespace longship::nn {

/// Runs layer l as a unit of the model (nn/unit.h); empty: a plain call.
using LayerRunner = std::function<std::vector<at::Tensor>(
    int64_t layer, const UnitFunction& function, const std::vector<at::Tensor>& inputs)>;

/// Sees named intermediate results, for parity checks; empty: nobody looks.
using Tap = std::function<void(std::string_view name, const at::Tensor& value)>;

}  // namespace longship::nn
