// Backward. A team of width / 8 threads goes through its rows once: gradients of the stream and of
// the branch, and in registers the sums over rows of its columns; then one fp32 row of partial sums
// a block, added up by column_sums. Bound by memory: for a stream in fp32 and products in bf16 14
// bytes an element (dh_out, dy, x, dh), with a branch 16 (dbranch). Shared memory 18 KiB.
#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/layer_norm/stream_branch.cuh"

namespace longship::kernels {
namespace {

// Two blocks of 320 threads with up to 102 registers fill a multiprocessor's register file.
constexpr int kBlockThreads = 320;
constexpr int kSmThreads = 2 * kBlockThreads;
constexpr int kAnyThreads = 256;
constexpr int kN = kColumnsPerThread;

/// Partial sums [num_blocks, width] of one block row each; null: not wanted.
struct Partials {
  float* scale = nullptr;
  float* shift = nullptr;
  float* bias = nullptr;
};

template <class T, class G, bool kAdd>
__global__ void __launch_bounds__(kMaxRowThreads)
    stream_layer_norm_backward_kernel(const __grid_constant__ StreamNormBackwardArgs a,
                                      const RowPlan plan, const Partials partials) {
  await_previous_kernel();
  __shared__ TeamSlots<2> slots[kMaxTeams];
  __shared__ TeamColumns columns;
  clear_slots(slots);
  const TeamRows rows = team_rows(plan);
  const bool active = owns_columns(plan);
  float factor[kN];
  if (active) load_factor(a.scale, a.plus_one, rows.group, threadIdx.x * kN, factor);
  float scale_sum[kN] = {}, shift_sum[kN] = {}, bias_sum[kN] = {};
  const int64_t key = kAdd ? branch_key(a.branch, rows.group) : 0;
  const uint32_t step = static_cast<uint32_t>(rows.step);
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = rows.count; left > 0; --left, row += step) {
    const uint32_t at = vector_at(plan, row);
    float dy[kN] = {}, x_hat[kN] = {};
    Vec<T, kN> dh_out = zero_vec<T, kN>();
    const float r = __ldg(a.rstd + row);
    float sums[2] = {0.0f, 0.0f};
    if (active) {
      const Vec<G, kN> dy_vec = load_at<G>(a.dy, at);
      const Vec<T, kN> x_vec = load_at<T>(a.x, at);
      if (a.dh_out != nullptr) dh_out = load_at<T>(a.dh_out, at);
      const float mean = __ldg(a.mean + row);
      unpack(dy_vec, dy);
      unpack(x_vec, x_hat);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x_hat[i] = (x_hat[i] - mean) * r;
        scale_sum[i] += dy[i] * x_hat[i];
        shift_sum[i] += dy[i];
        dy[i] *= factor[i];
        sums[0] += dy[i];
        sums[1] += dy[i] * x_hat[i];
      }
    }
    team_sum(sums, slots[threadIdx.y], left & 1);
    if (!active) continue;
    const float mean_d = sums[0] * plan.inverse_width;
    const float mean_dx = sums[1] * plan.inverse_width;
    float dh[kN];
    unpack(dh_out, dh);
#pragma unroll
    for (int i = 0; i < kN; ++i) dh[i] += r * (dy[i] - mean_d - x_hat[i] * mean_dx);
    unpack(store_at<T>(a.dh, at, dh), dh);
    if constexpr (kAdd) {
      branch_gradient<G>(a.branch, key, run_in_sample(plan, rows, row), dh);
#pragma unroll
      for (int i = 0; i < kN; ++i) bias_sum[i] += dh[i];
      store_at<G>(a.dbranch, at, dh);
    }
  }
  pass_missing_barriers(rows);
  if (partials.scale != nullptr) {
    store_partial(scale_sum, columns, partials.scale, a.width, active);
  }
  if (partials.shift != nullptr) {
    store_partial(shift_sum, columns, partials.shift, a.width, active);
  }
  if (kAdd && partials.bias != nullptr) {
    store_partial(bias_sum, columns, partials.bias, a.width, active);
  }
}

/// Any width and alignment: a block of kAnyThreads for a row, which it reads twice. Threads add to
/// the columns of the block's partial sums that they own.
template <class T, class G>
__global__ void __launch_bounds__(kAnyThreads)
    stream_layer_norm_backward_any_kernel(const __grid_constant__ StreamNormBackwardArgs a,
                                          const RowPlan plan, const Partials partials) {
  await_previous_kernel();
  __shared__ float shared[32];
  const TeamRows rows = team_rows(plan);
  const int64_t partial_row = static_cast<int64_t>(blockIdx.x) * a.width;
  const int64_t key = a.dbranch != nullptr ? branch_key(a.branch, rows.group) : 0;
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const int64_t base = row * a.width;
    const int64_t in_sample = base - rows.group * plan.rows_per_group * a.width;
    const G* dy = static_cast<const G*>(a.dy) + base;
    const T* x = static_cast<const T*>(a.x) + base;
    const float mean = a.mean[row];
    const float r = a.rstd[row];
    float sum_d = 0.0f;
    float sum_dx = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float d = to_float(dy[i]) * factor_at(a.scale, a.plus_one, rows.group, i);
      sum_d += d;
      sum_dx += d * ((to_float(x[i]) - mean) * r);
    }
    const float mean_d = block_sum(sum_d, shared) * plan.inverse_width;
    const float mean_dx = block_sum(sum_dx, shared) * plan.inverse_width;
    const auto add = [&](float* partial, int64_t i, float v) {
      if (partial == nullptr) return;
      float* target = partial + partial_row + i;
      *target = row == rows.first ? v : *target + v;
    };
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float dy_i = to_float(dy[i]);
      const float x_hat = (to_float(x[i]) - mean) * r;
      float dh =
          r * (dy_i * factor_at(a.scale, a.plus_one, rows.group, i) - mean_d - x_hat * mean_dx);
      if (a.dh_out != nullptr) dh += to_float(static_cast<const T*>(a.dh_out)[base + i]);
      const T stored = from_float<T>(dh);
      static_cast<T*>(a.dh)[base + i] = stored;
      add(partials.scale, i, dy_i * x_hat);
      add(partials.shift, i, dy_i);
      if (a.dbranch == nullptr) continue;
      const float g = branch_gradient_at<G>(a.branch, key, static_cast<uint64_t>(in_sample + i),
                                            to_float(stored));
      static_cast<G*>(a.dbranch)[base + i] = from_float<G>(g);
      add(partials.bias, i, g);
    }
  }
}

struct Plan {
  bool vectors;
  RowPlan rows;
};

Plan make_plan(const StreamNormBackwardArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.dh_out) && is_aligned16(a.dy) &&
                 is_aligned16(a.x) && is_aligned16(a.dh) && is_aligned16(a.dbranch);
  plan.rows = plan_rows(a.num_rows, a.num_groups, a.width,
                        plan.vectors ? team_threads(a.width) : kAnyThreads,
                        plan.vectors ? kBlockThreads : kAnyThreads, kSmThreads);
  return plan;
}

template <class T, class G>
void launch(const StreamNormBackwardArgs& a, const Plan& plan, const Partials& partials,
            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.rows.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.rows.threads),
                   static_cast<unsigned>(plan.rows.teams));
  if (!plan.vectors) {
    launch_kernel(stream_layer_norm_backward_any_kernel<T, G>, grid, block, 0, stream, a, plan.rows,
                  partials);
  } else if (a.dbranch != nullptr) {
    launch_kernel(stream_layer_norm_backward_kernel<T, G, true>, grid, block, 0, stream, a,
                  plan.rows, partials);
  } else {
    launch_kernel(stream_layer_norm_backward_kernel<T, G, false>, grid, block, 0, stream, a,
                  plan.rows, partials);
  }
}

int64_t num_sums(const StreamNormBackwardArgs& a) {
  return (a.dscale.data != nullptr) + (a.dshift.data != nullptr) + (a.dbias.data != nullptr);
}

}  // namespace

int64_t stream_norm_backward_workspace_bytes(const StreamNormBackwardArgs& args) {
  return num_sums(args) * make_plan(args).rows.num_blocks * args.width *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t stream_norm_backward(const StreamNormBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  const int64_t partial_size = plan.rows.num_blocks * args.width;
  float* free = args.workspace;
  const auto take = [&](const ParamGradient& gradient) -> float* {
    if (gradient.data == nullptr) return nullptr;
    float* taken = free;
    free += partial_size;
    return taken;
  };
  Partials partials;
  partials.scale = take(args.dscale);
  partials.shift = take(args.dshift);
  partials.bias = take(args.dbias);
  if (plan.rows.num_blocks > 0) {
    dispatch_stream(args.stream, args.product, [&](auto t, auto g) {
      launch<decltype(t), decltype(g)>(args, plan, partials, stream);
    });
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sums[] = {{partials.scale, plan.rows.num_blocks, args.dscale},
                            {partials.shift, plan.rows.num_blocks, args.dshift},
                            {partials.bias, plan.rows.num_blocks, args.dbias}};
  return column_sums(sums, 3, args.width, stream);
}

}  // namespace longship::kernels
