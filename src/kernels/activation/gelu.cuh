#pragma once
// GELU with the tanh approximation, written with the logistic function: 0.5 (1 + tanh(u)) =
// sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3). Two special-function instructions an element, and
// no cancellation for large negative x.

namespace longship::kernels {

constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.07135481627605725f;  // 2 sqrt(2/pi) 0.044715
constexpr float kLog2E = 1.4426950408889634f;

/// The factor s with gelu(x) = x s.
__device__ __forceinline__ float gelu_gate(float x) {
  const float t = x * fmaf(-kGeluCubic * kLog2E, x * x, -kGeluLinear * kLog2E);
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(t));
  float s;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
  return s;
}

/// gelu'(x), given s = gelu_gate(x). (1 - s) and not e * s: the latter is inf * 0 for x < -7.
__device__ __forceinline__ float gelu_slope(float x, float s) {
  return fmaf(x * s * (1.0f - s), fmaf(3.0f * kGeluCubic, x * x, kGeluLinear), s);
}

}  // namespace longship::kernels
