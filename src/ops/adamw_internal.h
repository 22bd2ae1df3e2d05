#pragma once
// Shared by the CPU and CUDA implementations of FusedAdamW.

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/optimizer/adamw_types.h"
#include "ops/adamw.h"

namespace longship::ops {

/// Scalars of every group for one update, rounded to fp32.
struct AdamWScalarRow {
  int64_t num_updates = -1;
  std::vector<kernels::AdamWGroupScalars> groups;
};
AdamWScalarRow to_scalars(const AdamWRates& rates, const AdamWHyper& hyper, size_t num_groups);
kernels::AdamWConstants to_constants(const AdamWHyper& hyper);

/// Throws InternalError unless the gradients fit the tensors.
void check_adamw_grads(const std::vector<AdamWTensor>& tensors, at::TensorList grads);

using AdamWFactory = std::unique_ptr<FusedAdamW> (*)(std::vector<AdamWTensor>, const AdamWHyper&);
/// Called by a static object of each implementation. Returns true.
bool register_adamw(c10::DeviceType type, AdamWFactory factory);

}  // namespace longship::ops
