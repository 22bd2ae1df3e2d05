// Tiles, registers and what bounds the passes: gated.cuh.
#include "kernels/activation/geglu.h"

#include "kernels/activation/gated.cuh"
#include "kernels/activation/gelu.cuh"

namespace longship::kernels {
namespace {

struct Gelu {
  __device__ __forceinline__ static float gate(float x) { return gelu_gate(x); }
  __device__ __forceinline__ static float slope(float x, float s) { return gelu_slope(x, s); }
};

}  // namespace

cudaError_t geglu_forward(const GatedArgs& args, cudaStream_t stream) {
  return gated::forward<Gelu>(args, stream);
}

cudaError_t geglu_backward(const GatedBackwardArgs& args, cudaStream_t stream) {
  return gated::backward<Gelu>(args, stream);
}

}  // namespace longship::kernels
