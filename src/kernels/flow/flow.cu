// Action chunks are small (some ten thousand elements): one element per thread access, bound by
// launch latency. The loss is summed by up to 128 blocks over a fixed share each, then by one
// block.
#include <algorithm>
#include <limits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/flow/flow.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxPartials = 128;                // also the threads of the last block
constexpr int64_t kElementsPerBlock = 4 * kThreads;  // fewer blocks where these suffice

template <class T>
__global__ void __launch_bounds__(kThreads)
    flow_mix_kernel(const T* __restrict__ actions, const T* __restrict__ noise,
                    const float* __restrict__ time, T* __restrict__ x_t, int64_t num_elements,
                    uint32_t per_sample) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t flat = first + threadIdx.x;
  if (flat >= num_elements) return;
  const float t = time[pack::RowWalk(first, per_sample).at(threadIdx.x).row];
  const float mixed =
      t * static_cast<float>(noise[flat]) + (1.0f - t) * static_cast<float>(actions[flat]);
  x_t[flat] = static_cast<T>(mixed);
}

template <class V, class T>
__global__ void __launch_bounds__(kThreads)
    flow_loss_partial_kernel(const V* __restrict__ v, const T* __restrict__ actions,
                             const T* __restrict__ noise, const bool* __restrict__ is_pad,
                             float* __restrict__ partial, int64_t num_elements, uint32_t width,
                             uint32_t dims, int64_t per_block) {
  await_previous_kernel();
  __shared__ float shared[32];
  const int64_t begin = blockIdx.x * per_block;
  const int64_t end = min(begin + per_block, num_elements);
  float sum = 0.0f, sum_all = 0.0f, steps = 0.0f;
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t flat = first + threadIdx.x;
    if (flat >= end) break;
    const auto [step, column] = pack::RowWalk(first, width).at(threadIdx.x);
    if (is_pad != nullptr && is_pad[step]) continue;
    const float difference = static_cast<float>(v[flat]) -
                             (static_cast<float>(noise[flat]) - static_cast<float>(actions[flat]));
    const float square = difference * difference;
    sum_all += square;
    if (column < dims) sum += square;
    if (column == 0) steps += 1.0f;
  }
  sum = block_sum(sum, shared);
  sum_all = block_sum(sum_all, shared);
  steps = block_sum(steps, shared);
  if (threadIdx.x != 0) return;
  partial[blockIdx.x] = sum;
  partial[gridDim.x + blockIdx.x] = sum_all;
  partial[2 * gridDim.x + blockIdx.x] = steps;
}

__global__ void __launch_bounds__(kMaxPartials)
    flow_loss_total_kernel(const float* __restrict__ partial, int num_partials, int64_t width,
                           int64_t dims, float* loss, float* loss_all, float* count) {
  await_previous_kernel();
  __shared__ float shared[32];
  float values[3] = {};
  if (threadIdx.x < num_partials) {
    for (int i = 0; i < 3; ++i) values[i] = partial[i * num_partials + threadIdx.x];
  }
  for (int i = 0; i < 3; ++i) values[i] = block_sum(values[i], shared);
  if (threadIdx.x != 0) return;
  const float steps = fmaxf(values[2], 1.0f);
  *count = steps * static_cast<float>(dims);
  *loss = values[0] / (steps * static_cast<float>(dims));
  *loss_all = values[1] / (steps * static_cast<float>(width));
}

template <class V, class T>
__global__ void __launch_bounds__(kThreads)
    flow_loss_backward_kernel(const float* __restrict__ dloss, const V* __restrict__ v,
                              const T* __restrict__ actions, const T* __restrict__ noise,
                              const bool* __restrict__ is_pad, const float* __restrict__ count,
                              V* __restrict__ dv, int64_t num_elements, uint32_t width,
                              uint32_t dims) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t flat = first + threadIdx.x;
  if (flat >= num_elements) return;
  const auto [step, column] = pack::RowWalk(first, width).at(threadIdx.x);
  float gradient = 0.0f;
  if (column < dims && (is_pad == nullptr || !is_pad[step])) {
    const float difference = static_cast<float>(v[flat]) -
                             (static_cast<float>(noise[flat]) - static_cast<float>(actions[flat]));
    gradient = difference * (2.0f * *dloss / *count);
  }
  dv[flat] = static_cast<V>(gradient);
}

template <class T>
cudaError_t mix(const FlowMixArgs& a, cudaStream_t stream) {
  const int64_t n = a.num_samples * a.per_sample;
  launch_kernel(flow_mix_kernel<T>, static_cast<unsigned>(pack::ceil_div(n, kThreads)), kThreads, 0,
                stream, static_cast<const T*>(a.actions), static_cast<const T*>(a.noise), a.time,
                static_cast<T*>(a.x_t), n, static_cast<uint32_t>(a.per_sample));
  return cudaGetLastError();
}

template <class V, class T>
cudaError_t loss(const FlowLossArgs& a, cudaStream_t stream) {
  const int64_t n = a.num_steps * a.width;
  const int64_t partials = flow_loss_num_partials(a.num_steps, a.width);
  if (partials > 0) {
    launch_kernel(flow_loss_partial_kernel<V, T>, static_cast<unsigned>(partials), kThreads, 0,
                  stream, static_cast<const V*>(a.v), static_cast<const T*>(a.actions),
                  static_cast<const T*>(a.noise), a.is_pad, a.partial, n,
                  static_cast<uint32_t>(a.width), static_cast<uint32_t>(a.dims),
                  pack::ceil_div(n, partials));
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  // Without elements this writes zero losses.
  launch_kernel(flow_loss_total_kernel, 1, kMaxPartials, 0, stream, a.partial,
                static_cast<int>(partials), a.width, a.dims, a.loss, a.loss_all, a.count);
  return cudaGetLastError();
}

template <class V, class T>
cudaError_t loss_backward(const FlowLossBackwardArgs& a, cudaStream_t stream) {
  const int64_t n = a.num_steps * a.width;
  launch_kernel(flow_loss_backward_kernel<V, T>, static_cast<unsigned>(pack::ceil_div(n, kThreads)),
                kThreads, 0, stream, a.dloss, static_cast<const V*>(a.v),
                static_cast<const T*>(a.actions), static_cast<const T*>(a.noise), a.is_pad, a.count,
                static_cast<V*>(a.dv), n, static_cast<uint32_t>(a.width),
                static_cast<uint32_t>(a.dims));
  return cudaGetLastError();
}

bool too_wide(int64_t width) {
  return width > std::numeric_limits<int32_t>::max();
}

}  // namespace

int64_t flow_loss_num_partials(int64_t num_steps, int64_t width) {
  return std::min(kMaxPartials, pack::ceil_div(num_steps * width, kElementsPerBlock));
}

cudaError_t flow_mix(const FlowMixArgs& a, cudaStream_t stream) {
  if (a.num_samples == 0 || a.per_sample == 0) return cudaSuccess;
  if (too_wide(a.per_sample)) return cudaErrorInvalidValue;
  return a.element == ElementType::kFloat32 ? mix<float>(a, stream) : mix<__nv_bfloat16>(a, stream);
}

cudaError_t flow_loss(const FlowLossArgs& a, cudaStream_t stream) {
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  using bf16 = __nv_bfloat16;
  const bool fp32 = a.element == ElementType::kFloat32;
  if (a.v_element == ElementType::kFloat32) {
    return fp32 ? loss<float, float>(a, stream) : loss<float, bf16>(a, stream);
  }
  return fp32 ? loss<bf16, float>(a, stream) : loss<bf16, bf16>(a, stream);
}

cudaError_t flow_loss_backward(const FlowLossBackwardArgs& a, cudaStream_t stream) {
  if (a.num_steps == 0 || a.width == 0) return cudaSuccess;
  if (too_wide(a.width)) return cudaErrorInvalidValue;
  using bf16 = __nv_bfloat16;
  const bool fp32 = a.element == ElementType::kFloat32;
  if (a.v_element == ElementType::kFloat32) {
    return fp32 ? loss_backward<float, float>(a, stream) : loss_backward<float, bf16>(a, stream);
  }
  return fp32 ? loss_backward<bf16, float>(a, stream) : loss_backward<bf16, bf16>(a, stream);
}

}  // namespace longship::kernels
