#pragma once
// Fused kernels that a recipe asks for and a model cannot have: it works all the same, only slower,
// and says so once, when it is built.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace longship::models {

struct LostKernel {
  std::string key;     // of the recipe
  std::string reason;  // where and why it is not used
};

/// One warning for each on a device that has the kernels, CUDA; elsewhere nobody expects them.
void warn_lost_kernels(at::Device device, const std::vector<LostKernel>& lost);

}  // namespace longship::models
