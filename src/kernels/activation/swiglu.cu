// Tiles, registers and what bounds the passes: gated.cuh.
#include "kernels/activation/swiglu.h"

#include "kernels/activation/gated.cuh"

namespace longship::kernels {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

struct Silu {
  /// The logistic function. Two special-function instructions; inf in between gives 0.
  __device__ __forceinline__ static float gate(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-kLog2E * x));
    float s;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
  }
  __device__ __forceinline__ static float slope(float x, float s) {
    return fmaf(x * s, 1.0f - s, s);
  }
};

}  // namespace

cudaError_t swiglu_forward(const GatedArgs& args, cudaStream_t stream) {
  return gated::forward<Silu>(args, stream);
}

cudaError_t swiglu_backward(const GatedBackwardArgs& args, cudaStream_t stream) {
  return gated::backward<Silu>(args, stream);
}

}  // namespace longship::kernels
