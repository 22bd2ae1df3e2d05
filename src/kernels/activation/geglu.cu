// One thread per run of 8 (or 1) columns of one row; flat over all rows, so that any width fills
// the blocks. No shared memory; 45 registers forward, 37 backward. Bound by memory traffic (about
// 10 instructions an element forward).
#include <limits>

#include "kernels/activation/geglu.h"
#include "kernels/activation/gelu.cuh"
#include "kernels/activation/pack.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kForwardPacks = 2;  // runs per thread: four loads in flight

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    geglu_forward_kernel(const T* __restrict__ gate_up, T* __restrict__ y, int64_t num_packs,
                         uint32_t per_row) {
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
    for (int i = 0; i < N; ++i) out[i] = gate[k][i] * gelu_gate(gate[k][i]) * up[k][i];
    pack::store<N>(y + flat * N, out);
  }
}

template <class T, int N, bool kWithY>
__global__ void __launch_bounds__(kThreads)
    geglu_backward_kernel(const T* __restrict__ dy, const T* __restrict__ gate_up,
                          T* __restrict__ d_gate_up, T* __restrict__ y, int64_t num_packs,
                          uint32_t per_row) {
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
    const float s = gelu_gate(x);
    const float value = x * s;
    const float slope = gelu_slope(x, s);
    out[i] = value * up[i];
    gate[i] = g[i] * up[i] * slope;
    up[i] = g[i] * value;
  }
  pack::store<N>(d_gate_up + at, gate);
  pack::store<N>(d_gate_up + at + width, up);
  if constexpr (kWithY) pack::store<N>(y + flat * N, out);
}

template <class T, int N>
cudaError_t forward(const GegluArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_rows * per_row;
  const int64_t blocks = pack::ceil_div(num_packs, kThreads * kForwardPacks);
  geglu_forward_kernel<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(a.gate_up), static_cast<T*>(a.y), num_packs,
      static_cast<uint32_t>(per_row));
  return cudaGetLastError();
}

template <class T, int N>
cudaError_t backward(const GegluBackwardArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_rows * per_row;
  const auto blocks = static_cast<unsigned>(pack::ceil_div(num_packs, kThreads));
  const auto kernel =
      a.y != nullptr ? geglu_backward_kernel<T, N, true> : geglu_backward_kernel<T, N, false>;
  kernel<<<blocks, kThreads, 0, stream>>>(
      static_cast<const T*>(a.dy), static_cast<const T*>(a.gate_up), static_cast<T*>(a.d_gate_up),
      static_cast<T*>(a.y), num_packs, static_cast<uint32_t>(per_row));
  return cudaGetLastError();
}

bool too_wide(int64_t width) {
  return width > std::numeric_limits<int32_t>::max();
}

}  // namespace

cudaError_t geglu_forward(const GegluArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0 || a.width == 0) return cudaSuccess;
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.gate_up, a.y);
  if (a.element == ElementType::kFloat32) {
    return wide ? forward<float, pack::kWide>(a, stream) : forward<float, 1>(a, stream);
  }
  return wide ? forward<__nv_bfloat16, pack::kWide>(a, stream)
              : forward<__nv_bfloat16, 1>(a, stream);
}

cudaError_t geglu_backward(const GegluBackwardArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0 || a.width == 0) return cudaSuccess;
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  const bool wide =
      a.width % pack::kWide == 0 && pack::aligned16(a.dy, a.gate_up, a.d_gate_up, a.y);
  if (a.element == ElementType::kFloat32) {
    return wide ? backward<float, pack::kWide>(a, stream) : backward<float, 1>(a, stream);
  }
  return wide ? backward<__nv_bfloat16, pack::kWide>(a, stream)
              : backward<__nv_bfloat16, 1>(a, stream);
}

}  // namespace longship::kernels
