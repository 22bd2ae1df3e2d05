// Forward. A team of width / 8 threads holds a row in registers for the mean, the variance around
// it and y, while the next row is on its way; parameters stay in registers for all rows of the
// block. Bound by memory: 2 (without addition) or 4 elements of traffic per element. Shared memory
// 1 KiB.
#include <cuda_bf16.h>

#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_team.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace longship::kernels {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kSmThreads = 1024;
constexpr int kN = kColumnsPerThread;

template <class T>
struct Inputs {
  Vec<T, kN> h = zero_vec<T, kN>();
  Vec<T, kN> branch = zero_vec<T, kN>();
};

template <class T, bool kAdd>
__device__ inline Inputs<T> load_inputs(const LayerNormArgs& a, uint32_t at, bool active) {
  Inputs<T> in;
  if (active) {
    in.h = load_at<T>(a.h, at);
    if constexpr (kAdd) in.branch = load_at<T>(a.branch, at);
  }
  return in;
}

template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxRowThreads, 2)
    layer_norm_forward_kernel(const LayerNormArgs a, const RowPlan plan) {
  await_previous_kernel();
  __shared__ TeamSlots<1> mean_slots[kMaxTeams];
  __shared__ TeamSlots<1> variance_slots[kMaxTeams];
  clear_slots(mean_slots);
  clear_slots(variance_slots);
  // Packed fp32 rows take too many registers to hold two of them.
  constexpr bool kPrefetch = sizeof(T) == 2;
  const TeamRows rows = team_rows(plan);
  const int column = threadIdx.x * kN;
  const bool active = owns_columns(plan);
  float weight[kN], bias[kN];
  if (active) {
    load_param(a.weight, 0, column, 1.0f, weight);
    load_param(a.bias, 0, column, 0.0f, bias);
  }
  const uint32_t step = static_cast<uint32_t>(rows.step);
  uint32_t row = static_cast<uint32_t>(rows.first);
  Inputs<T> next;
  if (kPrefetch && rows.count > 0) next = load_inputs<T, kAdd>(a, vector_at(plan, row), active);
  for (int left = rows.count; left > 0; --left, row += step) {
    const uint32_t at = vector_at(plan, row);
    const Inputs<T> in = kPrefetch ? next : load_inputs<T, kAdd>(a, at, active);
    if (kPrefetch && left > 1) next = load_inputs<T, kAdd>(a, vector_at(plan, row + step), active);
    float x[kN];
    unpack(in.h, x);
    if (kAdd && active) {
      float branch[kN];
      unpack(in.branch, branch);
#pragma unroll
      for (int i = 0; i < kN; ++i) x[i] += branch[i];
      unpack(store_at<T>(a.h_out, at, x), x);
    }
    float sum[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[0] += x[i];
    team_sum(sum, mean_slots[threadIdx.y], left & 1);
    const float mean = sum[0] * plan.inverse_width;
    sum[0] = 0.0f;
    if (active) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x[i] -= mean;
        sum[0] += x[i] * x[i];
      }
    }
    team_sum(sum, variance_slots[threadIdx.y], left & 1);
    const float r = rsqrtf(sum[0] * plan.inverse_width + a.eps);
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.rstd[row] = r;
    }
    if (active) {
#pragma unroll
      for (int i = 0; i < kN; ++i) x[i] = x[i] * r * weight[i] + bias[i];
      store_at<T>(a.y, at, x);
    }
  }
}

/// Any width and alignment: a block of kBlockThreads for a row, which it reads three times.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kBlockThreads)
    layer_norm_forward_any_kernel(const LayerNormArgs a, const RowPlan plan) {
  await_previous_kernel();
  __shared__ float shared[32];
  const TeamRows rows = team_rows(plan);
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const T* h = static_cast<const T*>(a.h) + row * a.width;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kBlockThreads) {
      float x = to_float(h[i]);
      if constexpr (kAdd) {
        const float branch = to_float(static_cast<const T*>(a.branch)[row * a.width + i]);
        const T rounded = from_float<T>(x + branch);
        static_cast<T*>(a.h_out)[row * a.width + i] = rounded;
        x = to_float(rounded);
      }
      sum += x;
    }
    const float mean = block_sum(sum, shared) * plan.inverse_width;
    // Each thread rereads the columns that it wrote itself.
    const T* x_row = kAdd ? static_cast<const T*>(a.h_out) + row * a.width : h;
    sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kBlockThreads) {
      const float d = to_float(x_row[i]) - mean;
      sum += d * d;
    }
    const float r = rsqrtf(block_sum(sum, shared) * plan.inverse_width + a.eps);
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.rstd[row] = r;
    }
    for (int64_t i = threadIdx.x; i < a.width; i += kBlockThreads) {
      const float y = (to_float(x_row[i]) - mean) * r * param_at(a.weight, 0, i, 1.0f) +
                      param_at(a.bias, 0, i, 0.0f);
      static_cast<T*>(a.y)[row * a.width + i] = from_float<T>(y);
    }
  }
}

template <class T, bool kAdd>
void launch(const LayerNormArgs& a, cudaStream_t stream) {
  const bool vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.h) &&
                       is_aligned16(a.branch) && is_aligned16(a.h_out) && is_aligned16(a.y);
  const int threads = vectors ? team_threads(a.width) : kBlockThreads;
  const RowPlan plan = plan_rows(a.num_rows, 1, a.width, threads, kBlockThreads, kSmThreads);
  const dim3 grid(static_cast<unsigned>(plan.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.threads), static_cast<unsigned>(plan.teams));
  if (vectors) {
    launch_kernel(layer_norm_forward_kernel<T, kAdd>, grid, block, 0, stream, a, plan);
  } else {
    launch_kernel(layer_norm_forward_any_kernel<T, kAdd>, grid, block, 0, stream, a, plan);
  }
}

template <class T>
cudaError_t forward(const LayerNormArgs& a, cudaStream_t stream) {
  if (a.branch != nullptr) {
    launch<T, true>(a, stream);
  } else {
    launch<T, false>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t layer_norm_forward(const LayerNormArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  return args.element == ElementType::kFloat32 ? forward<float>(args, stream)
                                               : forward<__nv_bfloat16>(args, stream);
}

}  // namespace longship::kernels
