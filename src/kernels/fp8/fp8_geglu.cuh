#pragma once
// gelu_tanh(gate) * up and its gradient for one element, in fp32.
//
// 0.5 * (1 + tanh(u)) is the sigmoid of 2u, which keeps its relative accuracy where gate is very
// negative; an approximate tanh would not. Two special-function instructions an element.

namespace longship::kernels::fp8 {

__device__ inline float power_of_two(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

__device__ inline float reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

struct Gelu {
  float sigmoid;  // 1 / (1 + exp(-2u)), u = sqrt(2 / pi) * (g + 0.044715 g^3)
  float slope;    // 2 du/dg
};

__device__ inline Gelu gelu_parts(float gate) {
  constexpr float kLinear = 1.5957691216f;  // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715f * kLinear;
  constexpr float kLog2E = 1.4426950409f;
  const float square = gate * gate;
  const float exponent = gate * fmaf(square, -kLog2E * kCubic, -kLog2E * kLinear);
  Gelu out;
  out.sigmoid = reciprocal(1.0f + power_of_two(exponent));
  out.slope = fmaf(square, 3.0f * kCubic, kLinear);
  return out;
}

__device__ inline float geglu(float gate, float up) {
  return gate * gelu_parts(gate).sigmoid * up;
}

struct GegluGradient {
  float gate, up;
};

__device__ inline GegluGradient geglu_gradient(float dy, float gate, float up) {
  const Gelu gelu = gelu_parts(gate);
  const float value = gate * gelu.sigmoid;
  const float derivative = gelu.sigmoid + value * (1.0f - gelu.sigmoid) * gelu.slope;
  return {dy * up * derivative, dy * value};
}

}  // namespace longship::kernels::fp8
