#pragma once
// Passes of the gated activations, made for an Activation f(x) = x s(x):
//   static float gate(float x)            the factor s
//   static float slope(float x, float s)  f'(x), given s
//
// One thread per run of 8 (or 1) columns of one row; flat over all rows, so that any width fills
// the blocks. No shared memory; 45 registers forward, 40 backward. Bound by memory traffic (about
// 10 instructions an element forward).
#include <limits>

#include "kernels/activation/gated.h"
#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"

namespace longship::kernels::gated {

constexpr int kThreads = 256;
constexpr int kForwardPacks = 2;  // runs per thread: four loads in flight

template <class Activation, class T, int N>
__global__ void __launch_bounds__(kThreads)
    gated_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y, int64_t num_packs,
                         uint32_t per_row) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kForwardPacks);
  const pack::RowWalk walk(first, per_row);
  const int64_t width = static_cast<int64_t>(per_row) * N;
  float gate[kForwardPacks][N];
  float up[kForwardPacks][N];
#pragma unroll
  for (int k = 0; k < kForwardPacks; ++k) {
    const uint32_t offset = k * kThreads + threadIdx.x;
    if (first + offset >= num_packs) break;
    const auto [row, column] = walk.at(offset);
    const T* in = gate_up + row * 2 * width + static_cast<int64_t>(column) * N;
    pack::load<N>(in, gate[k]);
    pack::load<N>(in + width, up[k]);
  }
#pragma unroll
  for (int k = 0; k < kForwardPacks; ++k) {
    const int64_t flat = first + k * kThreads + threadIdx.x;
    if (flat >= num_packs) break;
    float out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = gate[k][i] * Activation::gate(gate[k][i]) * up[k][i];
    pack::store<N>(y + flat * N, out);
  }
}

template <class Activation, class T, int N, bool kWithY>
__global__ void __launch_bounds__(kThreads)
    gated_backward_kernel(const T* __restrict__ dy, const T* __restrict__ gate_up,
                          T* __restrict__ d_gate_up, T* __restrict__ y, int64_t num_packs,
                          uint32_t per_row) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t flat = first + threadIdx.x;
  if (flat >= num_packs) return;
  const auto [row, column] = pack::RowWalk(first, per_row).at(threadIdx.x);
  const int64_t width = static_cast<int64_t>(per_row) * N;
  const int64_t at = row * 2 * width + static_cast<int64_t>(column) * N;
  float gate[N];
  float up[N];
  float g[N];
  pack::load<N>(gate_up + at, gate);
  pack::load<N>(gate_up + at + width, up);
  pack::load<N>(dy + flat * N, g);
  float out[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float x = gate[i];
    const float s = Activation::gate(x);
    const float value = x * s;
    const float slope = Activation::slope(x, s);
    out[i] = value * up[i];
    gate[i] = g[i] * up[i] * slope;
    up[i] = g[i] * value;
  }
  pack::store<N>(d_gate_up + at, gate);
  pack::store<N>(d_gate_up + at + width, up);
  if constexpr (kWithY) pack::store<N>(y + flat * N, out);
}

template <class Activation, class T, int N>
cudaError_t launch_forward(const GatedArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_rows * per_row;
  const int64_t blocks = pack::ceil_div(num_packs, kThreads * kForwardPacks);
  launch_kernel(gated_forward_kernel<Activation, T, N>, static_cast<unsigned>(blocks), kThreads, 0,
                stream, static_cast<const T*>(a.gate_up), static_cast<T*>(a.y), num_packs,
                static_cast<uint32_t>(per_row));
  return cudaGetLastError();
}

template <class Activation, class T, int N>
cudaError_t launch_backward(const GatedBackwardArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_rows * per_row;
  const auto blocks = static_cast<unsigned>(pack::ceil_div(num_packs, kThreads));
  const auto kernel = a.y != nullptr ? gated_backward_kernel<Activation, T, N, true>
                                     : gated_backward_kernel<Activation, T, N, false>;
  launch_kernel(kernel, blocks, kThreads, 0, stream, static_cast<const T*>(a.dy),
                static_cast<const T*>(a.gate_up), static_cast<T*>(a.d_gate_up),
                static_cast<T*>(a.y), num_packs, static_cast<uint32_t>(per_row));
  return cudaGetLastError();
}

inline bool too_wide(int64_t width) {
  return width > std::numeric_limits<int32_t>::max();
}

template <class Activation>
cudaError_t forward(const GatedArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0 || a.width == 0) return cudaSuccess;
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.gate_up, a.y);
  if (a.element == ElementType::kFloat32) {
    return wide ? launch_forward<Activation, float, pack::kWide>(a, stream)
                : launch_forward<Activation, float, 1>(a, stream);
  }
  return wide ? launch_forward<Activation, __nv_bfloat16, pack::kWide>(a, stream)
              : launch_forward<Activation, __nv_bfloat16, 1>(a, stream);
}

template <class Activation>
cudaError_t backward(const GatedBackwardArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0 || a.width == 0) return cudaSuccess;
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  const bool wide =
      a.width % pack::kWide == 0 && pack::aligned16(a.dy, a.gate_up, a.d_gate_up, a.y);
  if (a.element == ElementType::kFloat32) {
    return wide ? launch_backward<Activation, float, pack::kWide>(a, stream)
                : launch_backward<Activation, float, 1>(a, stream);
  }
  return wide ? launch_backward<Activation, __nv_bfloat16, pack::kWide>(a, stream)
              : launch_backward<Activation, __nv_bfloat16, 1>(a, stream);
}

}  // namespace longship::kernels::gated
