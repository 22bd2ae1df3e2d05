#pragma once
// Gated GELU: y = gelu_tanh(gate) * up, fp32 arithmetic, one rounding.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include "kernels/activation/gated.h"

namespace longship::kernels {

/// Asynchronous on `stream`. Bound by memory: 3 elements moved per element of y.
cudaError_t geglu_forward(const GatedArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Bound by memory: 5 elements moved per element of dy, 6 with y.
cudaError_t geglu_backward(const GatedBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
