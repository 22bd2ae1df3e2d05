#pragma once
// Gated residual addition out = h + branch * gate[g] in fp32, rounded once to the element type: the
// addition of rms_norm.h where no norm follows. Host API of the CUDA kernels.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"

namespace longship::kernels {

/// h, branch, out [num_rows, width] contiguous, of type `element`, not overlapping. Row r belongs
/// to group r / (num_rows / num_groups).
struct AddGateArgs {
  const void* h = nullptr;
  const void* branch = nullptr;
  ParamRows gate;  // null: plain addition
  void* out = nullptr;
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// dbranch = dout * gate[g]; dgate[g] = sum of dout * branch over the rows of the group. The
/// gradient of h is dout itself; without a gate there is nothing to compute.
struct AddGateBackwardArgs {
  const void* dout = nullptr;
  const void* branch = nullptr;
  ParamRows gate;
  void* dbranch = nullptr;
  ParamGradient dgate;
  float* workspace = nullptr;  // add_gate_backward_workspace_bytes
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: 3 elements of traffic per element.
cudaError_t add_gate_forward(const AddGateArgs& args, cudaStream_t stream);

/// Asynchronous on `stream`, two launches. Deterministic. Without rows dgate is set to zero.
cudaError_t add_gate_backward(const AddGateBackwardArgs& args, cudaStream_t stream);

/// Bytes that `workspace` must have, 16-byte aligned; all other fields of args are set.
int64_t add_gate_backward_workspace_bytes(const AddGateBackwardArgs& args);

}  // namespace longship::kernels
