// Teams of width / 8 threads go through rows; the backward kernel sums the columns of its gradient
// in registers, one fp32 row of partial sums a block, added up by column_sums. Bound by memory: for
// a stream in fp32 and products in bf16 10 bytes an element forward (h, branch, out), 6 backward
// (dout, dbranch). Shared memory of the backward kernel 16 KiB.
#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/layer_norm/stream_branch.cuh"

namespace longship::kernels {
namespace {

constexpr int kAnyThreads = 256;
constexpr int kForwardSmThreads = 1024;
constexpr int kBackwardSmThreads = 1024;
constexpr int kN = kColumnsPerThread;

template <class T, class G>
__global__ void __launch_bounds__(kMaxRowThreads, 2)
    add_dropped_forward_kernel(const __grid_constant__ AddDroppedArgs a, const RowPlan plan) {
  if (!owns_columns(plan)) return;
  const TeamRows rows = team_rows(plan);
  const int64_t key = branch_key(a.branch, rows.group);
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = rows.count; left > 0; --left, row += static_cast<uint32_t>(rows.step)) {
    const uint32_t at = vector_at(plan, row);
    const Vec<T, kN> h_vec = load_at<T>(a.h, at);
    float v[kN], h[kN];
    unpack(load_at<G>(a.branch.values, at), v);
    drop_branch<G>(a.branch, key, run_in_sample(plan, rows, row), v);
    unpack(h_vec, h);
#pragma unroll
    for (int i = 0; i < kN; ++i) h[i] += v[i];
    store_at<T>(a.out, at, h);
  }
}

template <class T, class G>
__global__ void __launch_bounds__(kAnyThreads)
    add_dropped_forward_any_kernel(const __grid_constant__ AddDroppedArgs a, const RowPlan plan) {
  const TeamRows rows = team_rows(plan);
  const int64_t key = branch_key(a.branch, rows.group);
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const int64_t base = row * a.width;
    const int64_t in_sample = base - rows.group * plan.rows_per_group * a.width;
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float v = to_float(static_cast<const G*>(a.branch.values)[base + i]);
      const float h = to_float(static_cast<const T*>(a.h)[base + i]);
      static_cast<T*>(a.out)[base + i] = from_float<T>(
          h + drop_branch_at<G>(a.branch, key, i, static_cast<uint64_t>(in_sample + i), v));
    }
  }
}

template <class T, class G>
__global__ void __launch_bounds__(kMaxRowThreads, 2)
    add_dropped_backward_kernel(const __grid_constant__ AddDroppedBackwardArgs a,
                                const RowPlan plan, float* partial) {
  __shared__ TeamColumns columns;
  const TeamRows rows = team_rows(plan);
  const bool active = owns_columns(plan);
  const int64_t key = branch_key(a.branch, rows.group);
  float sum[kN] = {};
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = active ? rows.count : 0; left > 0; --left) {
    const uint32_t at = vector_at(plan, row);
    float g[kN];
    unpack(load_at<T>(a.dout, at), g);
    branch_gradient<G>(a.branch, key, run_in_sample(plan, rows, row), g);
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[i] += g[i];
    store_at<G>(a.dbranch, at, g);
    row += static_cast<uint32_t>(rows.step);
  }
  if (partial != nullptr) store_partial(sum, columns, partial, a.width, active);
}

/// Threads add to the columns of the block's partial sums that they own.
template <class T, class G>
__global__ void __launch_bounds__(kAnyThreads)
    add_dropped_backward_any_kernel(const __grid_constant__ AddDroppedBackwardArgs a,
                                    const RowPlan plan, float* partial) {
  const TeamRows rows = team_rows(plan);
  const int64_t key = branch_key(a.branch, rows.group);
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const int64_t base = row * a.width;
    const int64_t in_sample = base - rows.group * plan.rows_per_group * a.width;
    for (int64_t i = threadIdx.x; i < a.width; i += kAnyThreads) {
      const float g = branch_gradient_at<G>(a.branch, key, static_cast<uint64_t>(in_sample + i),
                                            to_float(static_cast<const T*>(a.dout)[base + i]));
      static_cast<G*>(a.dbranch)[base + i] = from_float<G>(g);
      if (partial == nullptr) continue;
      float* target = partial + static_cast<int64_t>(blockIdx.x) * a.width + i;
      *target = row == rows.first ? g : *target + g;
    }
  }
}

struct Plan {
  bool vectors;
  RowPlan rows;
};

Plan make_plan(const AddDroppedArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.h) &&
                 is_aligned16(a.branch.values) && is_aligned16(a.out);
  plan.rows =
      plan_rows(a.num_rows, a.num_groups, a.width,
                plan.vectors ? team_threads(a.width) : kAnyThreads, kAnyThreads, kForwardSmThreads);
  return plan;
}

Plan make_plan(const AddDroppedBackwardArgs& a) {
  Plan plan;
  plan.vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.dout) && is_aligned16(a.dbranch);
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

template <class T, class G>
void forward(const AddDroppedArgs& a, cudaStream_t stream) {
  const Plan plan = make_plan(a);
  const dim3 grid = grid_of(plan.rows), block = block_of(plan.rows);
  if (plan.vectors) {
    add_dropped_forward_kernel<T, G><<<grid, block, 0, stream>>>(a, plan.rows);
  } else {
    add_dropped_forward_any_kernel<T, G><<<grid, block, 0, stream>>>(a, plan.rows);
  }
}

template <class T, class G>
void backward(const AddDroppedBackwardArgs& a, const Plan& plan, float* partial,
              cudaStream_t stream) {
  const dim3 grid = grid_of(plan.rows), block = block_of(plan.rows);
  if (plan.vectors) {
    add_dropped_backward_kernel<T, G><<<grid, block, 0, stream>>>(a, plan.rows, partial);
  } else {
    add_dropped_backward_any_kernel<T, G><<<grid, block, 0, stream>>>(a, plan.rows, partial);
  }
}

}  // namespace

cudaError_t add_dropped_forward(const AddDroppedArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  dispatch_stream(args.stream, args.product,
                  [&](auto t, auto g) { forward<decltype(t), decltype(g)>(args, stream); });
  return cudaGetLastError();
}

int64_t add_dropped_backward_workspace_bytes(const AddDroppedBackwardArgs& args) {
  if (args.dbias.data == nullptr) return 0;
  return make_plan(args).rows.num_blocks * args.width * static_cast<int64_t>(sizeof(float));
}

cudaError_t add_dropped_backward(const AddDroppedBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  float* partial = args.dbias.data != nullptr ? args.workspace : nullptr;
  if (plan.rows.num_blocks > 0) {
    dispatch_stream(args.stream, args.product, [&](auto t, auto g) {
      backward<decltype(t), decltype(g)>(args, plan, partial, stream);
    });
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sum = {partial, plan.rows.num_blocks, args.dbias};
  return column_sums(&sum, 1, args.width, stream);
}

}  // namespace longship::kernels
