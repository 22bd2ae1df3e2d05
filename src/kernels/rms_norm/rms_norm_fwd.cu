// Forward. A team of width / 8 threads holds a row in registers between the sum of squares and y,
// while the next row is on its way; parameters stay in registers for all rows of the block.
// Bound by memory: 2 (without addition) or 4 elements of traffic per element. Shared memory 1 KiB.
#include <cuda_bf16.h>

#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_team.cuh"
#include "kernels/rms_norm/rms_norm.h"

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
__device__ inline Inputs<T> load_inputs(const RmsNormArgs& a, uint32_t at, bool active) {
  Inputs<T> in;
  if (active) {
    in.h = load_at<T>(a.h, at);
    if constexpr (kAdd) in.branch = load_at<T>(a.branch, at);
  }
  return in;
}

template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxRowThreads, 2)
    rms_norm_forward_kernel(const RmsNormArgs a, const RowPlan plan) {
  await_previous_kernel();
  __shared__ TeamSlots<1> slots[kMaxTeams];
  clear_slots(slots);
  // Packed fp32 rows take too many registers to hold two of them.
  constexpr bool kPrefetch = sizeof(T) == 2;
  const TeamRows rows = team_rows(plan);
  const int column = threadIdx.x * kN;
  const bool active = owns_columns(plan);
  float gate[kN], factor[kN], shift[kN];
  if (active) {
    load_param(a.gate, rows.group, column, 1.0f, gate);
    load_param(a.scale, rows.group, column, 0.0f, factor);
#pragma unroll
    for (int i = 0; i < kN; ++i) factor[i] += a.offset;
    load_param(a.shift, rows.group, column, 0.0f, shift);
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
      // Product and sum rounded one by one, as on the CPU.
#pragma unroll
      for (int i = 0; i < kN; ++i) x[i] = __fadd_rn(x[i], __fmul_rn(branch[i], gate[i]));
      unpack(store_at<T>(a.h_out, at, x), x);
    }
    float sum[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[0] += x[i] * x[i];
    team_sum(sum, slots[threadIdx.y], left & 1);
    const float r = rsqrtf(sum[0] * plan.inverse_width + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = r;
    if (active) {
#pragma unroll
      for (int i = 0; i < kN; ++i) x[i] = x[i] * r * factor[i] + shift[i];
      store_at<T>(a.y, at, x);
    }
  }
}

/// Any width and alignment: a block of kBlockThreads for a row, which it reads twice.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kBlockThreads)
    rms_norm_forward_any_kernel(const RmsNormArgs a, const RowPlan plan) {
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
        const float gate = param_at(a.gate, rows.group, i, 1.0f);
        const T rounded = from_float<T>(__fadd_rn(x, __fmul_rn(branch, gate)));
        static_cast<T*>(a.h_out)[row * a.width + i] = rounded;
        x = to_float(rounded);
      }
      sum += x * x;
    }
    const float r = rsqrtf(block_sum(sum, shared) * plan.inverse_width + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = r;
    // Each thread rereads the columns that it wrote itself.
    const T* x_row = kAdd ? static_cast<const T*>(a.h_out) + row * a.width : h;
    for (int64_t i = threadIdx.x; i < a.width; i += kBlockThreads) {
      const float y = to_float(x_row[i]) * r * (a.offset + param_at(a.scale, rows.group, i, 0.0f)) +
                      param_at(a.shift, rows.group, i, 0.0f);
      static_cast<T*>(a.y)[row * a.width + i] = from_float<T>(y);
    }
  }
}

template <class T, bool kAdd>
void launch(const RmsNormArgs& a, cudaStream_t stream) {
  const bool vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.h) &&
                       is_aligned16(a.branch) && is_aligned16(a.h_out) && is_aligned16(a.y);
  const int threads = vectors ? team_threads(a.width) : kBlockThreads;
  const RowPlan plan =
      plan_rows(a.num_rows, a.num_groups, a.width, threads, kBlockThreads, kSmThreads);
  const dim3 grid(static_cast<unsigned>(plan.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.threads), static_cast<unsigned>(plan.teams));
  if (vectors) {
    launch_kernel(rms_norm_forward_kernel<T, kAdd>, grid, block, 0, stream, a, plan);
  } else {
    launch_kernel(rms_norm_forward_any_kernel<T, kAdd>, grid, block, 0, stream, a, plan);
  }
}

template <class T>
cudaError_t forward(const RmsNormArgs& a, cudaStream_t stream) {
  if (a.branch != nullptr) {
    launch<T, true>(a, stream);
  } else {
    launch<T, false>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  return args.element == ElementType::kFloat32 ? forward<float>(args, stream)
                                               : forward<__nv_bfloat16>(args, stream);
}

}  // namespace longship::kernels
