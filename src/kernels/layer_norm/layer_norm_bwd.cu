// Backward. A team of width / 8 threads goes through its rows once: the gradient of h, and in
// registers the sums over rows of its columns; then one fp32 row of partial sums a block, added up
// by column_sums. Bound by memory: 4 elements of traffic per element (dh_out, dy, x, dh). Shared
// memory 18 KiB.
#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_team.cuh"
#include "kernels/layer_norm/layer_norm.h"

namespace longship::kernels {
namespace {

// Two blocks of 320 threads with up to 102 registers fill a multiprocessor's register file.
constexpr int kBlockThreads = 320;
constexpr int kSmThreads = 2 * kBlockThreads;
constexpr int kAnyThreads = 256;
constexpr int kN = kColumnsPerThread;

/// Partial sums [num_blocks, width] of one block row each; null: not wanted.
struct Partials {
  float* weight = nullptr;
  float* bias = nullptr;
};

template <class T>
struct Inputs {
  Vec<T, kN> dh_out = zero_vec<T, kN>();
  Vec<T, kN> dy = zero_vec<T, kN>();
  Vec<T, kN> x = zero_vec<T, kN>();
  float mean = 0.0f;
  float rstd = 0.0f;
};

template <class T>
__device__ inline Inputs<T> load_inputs(const LayerNormBackwardArgs& a, const RowPlan& plan,
                                        uint32_t row, bool active) {
  const uint32_t at = vector_at(plan, row);
  Inputs<T> in;
  if (active) {
    in.dy = load_at<T>(a.dy, at);
    in.x = load_at<T>(a.x, at);
    if (a.dh_out != nullptr) in.dh_out = load_at<T>(a.dh_out, at);
  }
  in.mean = __ldg(a.mean + row);
  in.rstd = __ldg(a.rstd + row);
  return in;
}

template <class T>
__global__ void __launch_bounds__(kMaxRowThreads)
    layer_norm_backward_kernel(const LayerNormBackwardArgs a, const RowPlan plan,
                               const Partials partials) {
  await_previous_kernel();
  __shared__ TeamSlots<2> slots[kMaxTeams];
  __shared__ TeamColumns columns;
  clear_slots(slots);
  constexpr bool kPrefetch = sizeof(T) == 2;  // two packed fp32 rows take too many registers
  const TeamRows rows = team_rows(plan);
  const bool active = owns_columns(plan);
  float weight[kN];
  if (active) load_param(a.weight, 0, threadIdx.x * kN, 1.0f, weight);
  float weight_sum[kN] = {}, bias_sum[kN] = {};
  const uint32_t step = static_cast<uint32_t>(rows.step);
  uint32_t row = static_cast<uint32_t>(rows.first);
  Inputs<T> next;
  if (kPrefetch && rows.count > 0) next = load_inputs<T>(a, plan, row, active);
  for (int left = rows.count; left > 0; --left, row += step) {
    const Inputs<T> in = kPrefetch ? next : load_inputs<T>(a, plan, row, active);
    if (kPrefetch && left > 1) next = load_inputs<T>(a, plan, row + step, active);
    float dy[kN], x_hat[kN];
    unpack(in.dy, dy);
    unpack(in.x, x_hat);
    float sums[2] = {0.0f, 0.0f};
    if (active) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x_hat[i] = (x_hat[i] - in.mean) * in.rstd;
        weight_sum[i] += dy[i] * x_hat[i];
        bias_sum[i] += dy[i];
        dy[i] *= weight[i];
        sums[0] += dy[i];
        sums[1] += dy[i] * x_hat[i];
      }
    }
    team_sum(sums, slots[threadIdx.y], left & 1);
    if (!active) continue;
    const float mean_d = sums[0] * plan.inverse_width;
    const float mean_dx = sums[1] * plan.inverse_width;
    float dh[kN];
    unpack(in.dh_out, dh);
#pragma unroll
    for (int i = 0; i < kN; ++i) dh[i] += in.rstd * (dy[i] - mean_d - x_hat[i] * mean_dx);
    store_at<T>(a.dh, vector_at(plan, row), dh);
  }
  pass_missing_barriers(rows);
  store_partial(weight_sum, columns, partials.weight, a.width, active);
  store_partial(bias_sum, columns, partials.bias, a.width, active);
}

/// Any width and alignment: a block of kAnyThreads for a row, which it reads twice. Threads add to
/// the columns of the block's partial sums that they own.
template <class T>
__global__ void __launch_bounds__(kAnyThreads)
    layer_norm_backward_any_kernel(const LayerNormBackwardArgs a, const RowPlan plan,
                                   const Partials partials) {
  await_previous_kernel();
  __shared__ float shared[32];
  const TeamRows rows = team_rows(plan);
  const int64_t partial_row = static_cast<int64_t>(blockIdx.x) * a.width;
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const int64_t base = row * a.width;
    const T* dy = static_cast<const T*>(a.dy) + base;
    const T* x = static_cast<const T*>(a.x) + base;
    const float mean = a.mean[row];
    const float r = a.rstd[row];
    float sum_d = 0.0f;
    float sum_dx = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float d = to_float(dy[i]) * param_at(a.weight, 0, i, 1.0f);
      sum_d += d;
      sum_dx += d * ((to_float(x[i]) - mean) * r);
    }
    const float mean_d = block_sum(sum_d, shared) * plan.inverse_width;
    const float mean_dx = block_sum(sum_dx, shared) * plan.inverse_width;
    const auto add = [&](float* partial, int64_t i, float v) {
      float* target = partial + partial_row + i;
      *target = row == rows.first ? v : *target + v;
    };
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float dy_i = to_float(dy[i]);
      const float x_hat = (to_float(x[i]) - mean) * r;
      float dh = r * (dy_i * param_at(a.weight, 0, i, 1.0f) - mean_d - x_hat * mean_dx);
      if (a.dh_out != nullptr) dh += to_float(static_cast<const T*>(a.dh_out)[base + i]);
      static_cast<T*>(a.dh)[base + i] = from_float<T>(dh);
      add(partials.weight, i, dy_i * x_hat);
      add(partials.bias, i, dy_i);
    }
  }
}

struct Plan {
  bool vectors;
  RowPlan rows;
};

Plan make_plan(const LayerNormBackwardArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.dh_out) && is_aligned16(a.dy) &&
                 is_aligned16(a.x) && is_aligned16(a.dh);
  plan.rows = plan_rows(a.num_rows, 1, a.width, plan.vectors ? team_threads(a.width) : kAnyThreads,
                        plan.vectors ? kBlockThreads : kAnyThreads, kSmThreads);
  return plan;
}

template <class T>
void launch(const LayerNormBackwardArgs& a, const Plan& plan, const Partials& partials,
            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.rows.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.rows.threads),
                   static_cast<unsigned>(plan.rows.teams));
  if (!plan.vectors) {
    launch_kernel(layer_norm_backward_any_kernel<T>, grid, block, 0, stream, a, plan.rows,
                  partials);
  } else {
    launch_kernel(layer_norm_backward_kernel<T>, grid, block, 0, stream, a, plan.rows, partials);
  }
}

}  // namespace

int64_t layer_norm_backward_workspace_bytes(const LayerNormBackwardArgs& args) {
  constexpr int64_t kSums = 2;
  return kSums * make_plan(args).rows.num_blocks * args.width * static_cast<int64_t>(sizeof(float));
}

cudaError_t layer_norm_backward(const LayerNormBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  const int64_t partial_size = plan.rows.num_blocks * args.width;
  Partials partials;
  partials.weight = args.workspace;
  partials.bias = args.workspace + partial_size;
  if (plan.rows.num_blocks > 0) {
    if (args.element == ElementType::kFloat32) {
      launch<float>(args, plan, partials, stream);
    } else {
      launch<__nv_bfloat16>(args, plan, partials, stream);
    }
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sums[] = {{partials.weight, plan.rows.num_blocks, args.dweight},
                            {partials.bias, plan.rows.num_blocks, args.dbias}};
  return column_sums(sums, 2, args.width, stream);
}

}  // namespace longship::kernels
