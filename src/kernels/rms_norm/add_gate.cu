// Teams of width / 8 threads go through rows with the gate in registers; the backward kernel sums
// its columns in registers too. Bound by memory: 3 elements of traffic per element in both.
#include "kernels/rms_norm/add_gate.h"

#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/row_team.cuh"

namespace longship::kernels {
namespace {

constexpr int kAnyThreads = 256;
constexpr int kForwardSmThreads = 1536;
constexpr int kBackwardSmThreads = 1024;
constexpr int kN = kColumnsPerThread;

template <class T>
__global__ void __launch_bounds__(kMaxRowThreads, kForwardSmThreads / kMaxRowThreads)
    add_gate_forward_kernel(const AddGateArgs a, const RowPlan plan) {
  await_previous_kernel();
  if (!owns_columns(plan)) return;
  const TeamRows rows = team_rows(plan);
  float gate[kN];
  load_param(a.gate, rows.group, threadIdx.x * kN, 1.0f, gate);
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = rows.count; left > 0; --left, row += static_cast<uint32_t>(rows.step)) {
    const uint32_t at = vector_at(plan, row);
    const Vec<T, kN> h_vec = load_at<T>(a.h, at);
    const Vec<T, kN> branch_vec = load_at<T>(a.branch, at);
    float h[kN], branch[kN];
    unpack(h_vec, h);
    unpack(branch_vec, branch);
#pragma unroll
    for (int i = 0; i < kN; ++i) h[i] = __fadd_rn(h[i], __fmul_rn(branch[i], gate[i]));
    store_at<T>(a.out, at, h);
  }
}

template <class T>
__global__ void __launch_bounds__(kAnyThreads)
    add_gate_forward_any_kernel(const AddGateArgs a, const RowPlan plan) {
  await_previous_kernel();
  const TeamRows rows = team_rows(plan);
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const int64_t at = row * a.width + i;
      const float branch = to_float(static_cast<const T*>(a.branch)[at]);
      const float gate = param_at(a.gate, rows.group, i, 1.0f);
      const float h = to_float(static_cast<const T*>(a.h)[at]);
      static_cast<T*>(a.out)[at] = from_float<T>(__fadd_rn(h, __fmul_rn(branch, gate)));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kMaxRowThreads, kBackwardSmThreads / kMaxRowThreads)
    add_gate_backward_kernel(const AddGateBackwardArgs a, const RowPlan plan, float* partial) {
  await_previous_kernel();
  __shared__ TeamColumns columns;
  const TeamRows rows = team_rows(plan);
  const bool active = owns_columns(plan);
  float gate[kN];
  if (active) load_param(a.gate, rows.group, threadIdx.x * kN, 1.0f, gate);
  float sum[kN] = {};
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = active ? rows.count : 0; left > 0; --left) {
    const uint32_t at = vector_at(plan, row);
    const Vec<T, kN> dout_vec = load_at<T>(a.dout, at);
    const Vec<T, kN> branch_vec = load_at<T>(a.branch, at);
    float dout[kN], branch[kN];
    unpack(dout_vec, dout);
    unpack(branch_vec, branch);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      sum[i] += dout[i] * branch[i];
      dout[i] *= gate[i];
    }
    store_at<T>(a.dbranch, at, dout);
    row += static_cast<uint32_t>(rows.step);
  }
  store_partial(sum, columns, partial, a.width, active);
}

/// Threads add to the columns of the block's partial sums that they own.
template <class T>
__global__ void __launch_bounds__(kAnyThreads)
    add_gate_backward_any_kernel(const AddGateBackwardArgs a, const RowPlan plan, float* partial) {
  await_previous_kernel();
  const TeamRows rows = team_rows(plan);
  float* sums = partial + static_cast<int64_t>(blockIdx.x) * a.width;
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const int64_t at = row * a.width + i;
      const float dout = to_float(static_cast<const T*>(a.dout)[at]);
      const float v = dout * to_float(static_cast<const T*>(a.branch)[at]);
      sums[i] = row == rows.first ? v : sums[i] + v;
      const float gate = param_at(a.gate, rows.group, i, 1.0f);
      static_cast<T*>(a.dbranch)[at] = from_float<T>(dout * gate);
    }
  }
}

struct Plan {
  bool vectors;
  RowPlan rows;
};

Plan make_plan(const AddGateArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.h) && is_aligned16(a.branch) &&
                 is_aligned16(a.out);
  plan.rows =
      plan_rows(a.num_rows, a.num_groups, a.width,
                plan.vectors ? team_threads(a.width) : kAnyThreads, kAnyThreads, kForwardSmThreads);
  return plan;
}

Plan make_plan(const AddGateBackwardArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.dout) &&
                 is_aligned16(a.branch) && is_aligned16(a.dbranch);
  plan.rows = plan_rows(a.num_rows, a.num_groups, a.width,
                        plan.vectors ? team_threads(a.width) : kAnyThreads,
                        plan.vectors ? kMaxRowThreads : kAnyThreads, kBackwardSmThreads);
  return plan;
}

dim3 grid_of(const RowPlan& rows) {
  return dim3(static_cast<unsigned>(rows.num_blocks));
}
dim3 block_of(const RowPlan& rows) {
  return dim3(static_cast<unsigned>(rows.threads), static_cast<unsigned>(rows.teams));
}

template <class T>
void forward(const AddGateArgs& a, cudaStream_t stream) {
  const Plan plan = make_plan(a);
  const dim3 grid = grid_of(plan.rows);
  const dim3 block = block_of(plan.rows);
  if (plan.vectors) {
    launch_kernel(add_gate_forward_kernel<T>, grid, block, 0, stream, a, plan.rows);
  } else {
    launch_kernel(add_gate_forward_any_kernel<T>, grid, block, 0, stream, a, plan.rows);
  }
}

template <class T>
void backward(const AddGateBackwardArgs& a, const Plan& plan, cudaStream_t stream) {
  const dim3 grid = grid_of(plan.rows);
  const dim3 block = block_of(plan.rows);
  if (plan.vectors) {
    launch_kernel(add_gate_backward_kernel<T>, grid, block, 0, stream, a, plan.rows, a.workspace);
  } else {
    launch_kernel(add_gate_backward_any_kernel<T>, grid, block, 0, stream, a, plan.rows,
                  a.workspace);
  }
}

}  // namespace

cudaError_t add_gate_forward(const AddGateArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  if (args.element == ElementType::kFloat32) {
    forward<float>(args, stream);
  } else {
    forward<__nv_bfloat16>(args, stream);
  }
  return cudaGetLastError();
}

int64_t add_gate_backward_workspace_bytes(const AddGateBackwardArgs& args) {
  return make_plan(args).rows.num_blocks * args.width * static_cast<int64_t>(sizeof(float));
}

cudaError_t add_gate_backward(const AddGateBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  if (plan.rows.num_blocks > 0) {
    if (args.element == ElementType::kFloat32) {
      backward<float>(args, plan, stream);
    } else {
      backward<__nv_bfloat16>(args, plan, stream);
    }
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sum = {args.workspace, plan.rows.num_blocks, args.dgate};
  return column_sums(&sum, 1, args.width, stream);
}

}  // namespace longship::kernels
