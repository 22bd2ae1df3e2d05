#pragma once
// Gated GELU: y = gelu_tanh(gate) * up, fp32 arithmetic, one rounding.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// gate_up [num_rows, 2 width]: gate in the first `width` columns, up in the last; y [num_rows,
/// width]. Contiguous, one element type, on the device of the stream. width < 2^31.
struct GegluArgs {
  const void* gate_up = nullptr;
  void* y = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// dy [num_rows, width]; d_gate_up [num_rows, 2 width]; y [num_rows, width] is written again unless
/// null.
struct GegluBackwardArgs {
  const void* dy = nullptr;
  const void* gate_up = nullptr;
  void* d_gate_up = nullptr;
  void* y = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: 3 elements moved per element of y.
cudaError_t geglu_forward(const GegluArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Bound by memory: 5 elements moved per element of dy, 6 with y.
cudaError_t geglu_backward(const GegluBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
