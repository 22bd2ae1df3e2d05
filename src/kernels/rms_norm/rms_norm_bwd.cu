// Backward. A team of width / 8 threads goes through its rows once: gradients of h and branch, and
// in registers the sums over rows of its columns; then one fp32 row of partial sums a block, added
// up by column_sums. Bound by memory: 4 elements of traffic per element (dh_out, dy, x, dh), 6 with
// a gate. Shared memory 17 KiB.
#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_team.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace longship::kernels {
namespace {

constexpr int kBlockThreads = kMaxRowThreads;
constexpr int kAnyThreads = 256;
constexpr int kN = kColumnsPerThread;

/// Partial sums [num_blocks, width] of one block row each; null: not wanted.
struct Partials {
  float* gate = nullptr;
  float* scale = nullptr;
  float* shift = nullptr;
};

template <class T>
struct Inputs {
  Vec<T, kN> dh_out = zero_vec<T, kN>();
  Vec<T, kN> dy = zero_vec<T, kN>();
  Vec<T, kN> x = zero_vec<T, kN>();
  Vec<T, kN> branch = zero_vec<T, kN>();
  float rstd = 0.0f;
};

template <class T, bool kGate>
__device__ inline Inputs<T> load_inputs(const RmsNormBackwardArgs& a, const RowPlan& plan,
                                        uint32_t row, bool active) {
  const uint32_t at = vector_at(plan, row);
  Inputs<T> in;
  if (active) {
    in.dy = load_at<T>(a.dy, at);
    in.x = load_at<T>(a.x, at);
    if (a.dh_out != nullptr) in.dh_out = load_at<T>(a.dh_out, at);
    if constexpr (kGate) in.branch = load_at<T>(a.branch, at);
  }
  in.rstd = __ldg(a.rstd + row);
  return in;
}

/// Two blocks of an SM hide the latencies of the plain norm; the sums of the others need registers.
template <class T, bool kGate, bool kShift>
__global__ void __launch_bounds__(kMaxRowThreads, kShift || sizeof(T) == 4 ? 1 : 2)
    rms_norm_backward_kernel(const RmsNormBackwardArgs a, const RowPlan plan,
                             const Partials partials) {
  await_previous_kernel();
  __shared__ TeamSlots<1> slots[kMaxTeams];
  __shared__ TeamColumns columns;
  clear_slots(slots);
  constexpr bool kPrefetch = sizeof(T) == 2;  // two packed fp32 rows take too many registers
  const TeamRows rows = team_rows(plan);
  const int column = threadIdx.x * kN;
  const bool active = owns_columns(plan);
  float gate[kN], factor[kN];
  if (active) {
    load_param(a.gate, rows.group, column, 1.0f, gate);
    load_param(a.scale, rows.group, column, 0.0f, factor);
#pragma unroll
    for (int i = 0; i < kN; ++i) factor[i] += a.offset;
  }
  float gate_sum[kN] = {}, scale_sum[kN] = {}, shift_sum[kN] = {};
  const uint32_t step = static_cast<uint32_t>(rows.step);
  uint32_t row = static_cast<uint32_t>(rows.first);
  Inputs<T> next;
  if (kPrefetch && rows.count > 0) next = load_inputs<T, kGate>(a, plan, row, active);
  for (int left = rows.count; left > 0; --left, row += step) {
    const Inputs<T> in = kPrefetch ? next : load_inputs<T, kGate>(a, plan, row, active);
    if (kPrefetch && left > 1) next = load_inputs<T, kGate>(a, plan, row + step, active);
    float dy[kN], x_hat[kN];
    unpack(in.dy, dy);
    unpack(in.x, x_hat);
    float sum[1] = {0.0f};
    if (active) {
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x_hat[i] *= in.rstd;
        scale_sum[i] += dy[i] * x_hat[i];
        if constexpr (kShift) shift_sum[i] += dy[i];
        dy[i] *= factor[i];
        sum[0] += dy[i] * x_hat[i];
      }
    }
    team_sum(sum, slots[threadIdx.y], left & 1);
    if (!active) continue;
    const float mean = sum[0] * plan.inverse_width;
    float dh[kN];
    unpack(in.dh_out, dh);
#pragma unroll
    for (int i = 0; i < kN; ++i) dh[i] += in.rstd * (dy[i] - x_hat[i] * mean);
    const uint32_t at = vector_at(plan, row);
    store_at<T>(a.dh, at, dh);
    if constexpr (kGate) {
      float branch[kN];
      unpack(in.branch, branch);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        gate_sum[i] += dh[i] * branch[i];
        dh[i] *= gate[i];
      }
      store_at<T>(a.dbranch, at, dh);
    }
  }
  pass_missing_barriers(rows);
  store_partial(scale_sum, columns, partials.scale, a.width, active);
  if (kShift && partials.shift != nullptr) {
    store_partial(shift_sum, columns, partials.shift, a.width, active);
  }
  if (kGate) store_partial(gate_sum, columns, partials.gate, a.width, active);
}

/// Any width and alignment: a block of kAnyThreads for a row, which it reads twice. Threads add to
/// the columns of the block's partial sums that they own.
template <class T>
__global__ void __launch_bounds__(kAnyThreads)
    rms_norm_backward_any_kernel(const RmsNormBackwardArgs a, const RowPlan plan,
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
    const float r = a.rstd[row];
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float d = to_float(dy[i]) * (a.offset + param_at(a.scale, rows.group, i, 0.0f));
      sum += d * (to_float(x[i]) * r);
    }
    const float mean = block_sum(sum, shared) * plan.inverse_width;
    const auto add = [&](float* partial, int64_t i, float v) {
      float* target = partial + partial_row + i;
      *target = row == rows.first ? v : *target + v;
    };
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float dy_i = to_float(dy[i]);
      const float x_hat = to_float(x[i]) * r;
      const float d = dy_i * (a.offset + param_at(a.scale, rows.group, i, 0.0f));
      float dh = r * (d - x_hat * mean);
      if (a.dh_out != nullptr) dh += to_float(static_cast<const T*>(a.dh_out)[base + i]);
      static_cast<T*>(a.dh)[base + i] = from_float<T>(dh);
      add(partials.scale, i, dy_i * x_hat);
      if (partials.shift != nullptr) add(partials.shift, i, dy_i);
      if (partials.gate != nullptr) {
        const float branch = to_float(static_cast<const T*>(a.branch)[base + i]);
        add(partials.gate, i, dh * branch);
        dh *= param_at(a.gate, rows.group, i, 1.0f);
        static_cast<T*>(a.dbranch)[base + i] = from_float<T>(dh);
      }
    }
  }
}

struct Plan {
  bool vectors;
  RowPlan rows;
};

Plan make_plan(const RmsNormBackwardArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.dh_out) && is_aligned16(a.dy) &&
                 is_aligned16(a.x) && is_aligned16(a.branch) && is_aligned16(a.dh) &&
                 is_aligned16(a.dbranch);
  const bool two_blocks =
      a.dshift.data == nullptr && a.gate.data == nullptr && a.element == ElementType::kBFloat16;
  plan.rows =
      plan.vectors
          ? plan_rows(a.num_rows, a.num_groups, a.width, team_threads(a.width), kBlockThreads,
                      two_blocks ? 2 * kBlockThreads : kBlockThreads)
          : plan_rows(a.num_rows, a.num_groups, a.width, kAnyThreads, kAnyThreads, kBlockThreads);
  return plan;
}

int num_sums(const RmsNormBackwardArgs& a) {
  return 1 + (a.dshift.data != nullptr) + (a.gate.data != nullptr);
}

template <class T>
void launch(const RmsNormBackwardArgs& a, const Plan& plan, const Partials& partials,
            cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.rows.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.rows.threads),
                   static_cast<unsigned>(plan.rows.teams));
  if (!plan.vectors) {
    launch_kernel(rms_norm_backward_any_kernel<T>, grid, block, 0, stream, a, plan.rows, partials);
  } else if (a.gate.data != nullptr) {
    launch_kernel(rms_norm_backward_kernel<T, true, true>, grid, block, 0, stream, a, plan.rows,
                  partials);
  } else if (a.dshift.data != nullptr) {
    launch_kernel(rms_norm_backward_kernel<T, false, true>, grid, block, 0, stream, a, plan.rows,
                  partials);
  } else {
    launch_kernel(rms_norm_backward_kernel<T, false, false>, grid, block, 0, stream, a, plan.rows,
                  partials);
  }
}

}  // namespace

int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args) {
  return num_sums(args) * make_plan(args).rows.num_blocks * args.width *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  const int64_t partial_size = plan.rows.num_blocks * args.width;
  Partials partials;
  float* free = args.workspace;
  partials.scale = free;
  free += partial_size;
  if (args.dshift.data != nullptr) {
    partials.shift = free;
    free += partial_size;
  }
  if (args.gate.data != nullptr) partials.gate = free;
  if (plan.rows.num_blocks > 0) {
    if (args.element == ElementType::kFloat32) {
      launch<float>(args, plan, partials, stream);
    } else {
      launch<__nv_bfloat16>(args, plan, partials, stream);
    }
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sums[] = {{partials.scale, plan.rows.num_blocks, args.dscale},
                            {partials.shift, plan.rows.num_blocks, args.dshift},
                            {partials.gate, plan.rows.num_blocks, args.dgate}};
  return column_sums(sums, 3, args.width, stream);
}

}  // namespace longship::kernels
