// Teams of width / 8 threads go through rows; the backward kernel sums the columns of its gradient
// in registers, one fp32 row of partial sums a block, added up by column_sums. Bound by memory: for
// a stream in fp32 and products in bf16 10 bytes an element forward (h, branch, out), 6 backward
// (dout, dbranch). Shared memory of the backward kernel 16 KiB. Few rows with a bias take blocks of
// columns instead (few_rows.cuh), one launch.
#include <cuda_bf16.h>

#include "kernels/common/column_sums.h"
#include "kernels/common/few_rows.cuh"
#include "kernels/common/launch.cuh"
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
  await_previous_kernel();
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
  await_previous_kernel();
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
  await_previous_kernel();
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

/// Few rows in one launch: the sums over rows are final.
template <class T, class G, class B>
__global__ void __launch_bounds__(few_rows::kThreads)
    add_dropped_backward_few_kernel(const __grid_constant__ AddDroppedBackwardArgs a,
                                    uint32_t rows_per_group) {
  await_previous_kernel();
  __shared__ few_rows::Shared shared;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * few_rows::kTile;
  const int64_t column = tile + threadIdx.x * kN;
  const uint32_t per_row = static_cast<uint32_t>(a.width / kN);
  const uint32_t vector = static_cast<uint32_t>(column / kN);
  float sum[kN] = {};
  if (column < a.width) {
#pragma unroll 2
    for (uint32_t row = threadIdx.y; row < a.num_rows; row += few_rows::kRowLanes) {
      const uint32_t group = row / rows_per_group;
      const uint32_t at = row * per_row + vector;
      float g[kN];
      unpack(load_at<T>(a.dout, at), g);
      branch_gradient<G>(a.branch, branch_key(a.branch, group),
                         at - group * rows_per_group * per_row, g);
#pragma unroll
      for (int i = 0; i < kN; ++i) sum[i] += g[i];
      store_at<G>(a.dbranch, at, g);
    }
  }
  const few_rows::Total total = few_rows::join(sum, shared);
  if (total.column >= 0 && tile + total.column < a.width) {
    static_cast<B*>(a.dbias.data)[tile + total.column] = from_float<B>(total.sum);
  }
}

/// Threads add to the columns of the block's partial sums that they own.
template <class T, class G>
__global__ void __launch_bounds__(kAnyThreads)
    add_dropped_backward_any_kernel(const __grid_constant__ AddDroppedBackwardArgs a,
                                    const RowPlan plan, float* partial) {
  await_previous_kernel();
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
    launch_kernel(add_dropped_forward_kernel<T, G>, grid, block, 0, stream, a, plan.rows);
  } else {
    launch_kernel(add_dropped_forward_any_kernel<T, G>, grid, block, 0, stream, a, plan.rows);
  }
}

bool are_few(const AddDroppedBackwardArgs& a, const Plan& plan) {
  return plan.vectors && a.num_rows > 0 && a.num_rows <= few_rows::kMostRows &&
         a.dbias.data != nullptr && a.dbias.num_groups == 1;
}

template <class T, class G>
void backward_few(const AddDroppedBackwardArgs& a, cudaStream_t stream) {
  const auto kernel = a.dbias.element == ElementType::kFloat32
                          ? add_dropped_backward_few_kernel<T, G, float>
                          : add_dropped_backward_few_kernel<T, G, __nv_bfloat16>;
  launch_kernel(kernel, static_cast<unsigned>(few_rows::num_tiles(a.width)),
                dim3(few_rows::kRuns, few_rows::kRowLanes), 0, stream, a,
                static_cast<uint32_t>(a.num_rows / a.num_groups));
}

template <class T, class G>
void backward(const AddDroppedBackwardArgs& a, const Plan& plan, float* partial,
              cudaStream_t stream) {
  const dim3 grid = grid_of(plan.rows), block = block_of(plan.rows);
  if (plan.vectors) {
    launch_kernel(add_dropped_backward_kernel<T, G>, grid, block, 0, stream, a, plan.rows, partial);
  } else {
    launch_kernel(add_dropped_backward_any_kernel<T, G>, grid, block, 0, stream, a, plan.rows,
                  partial);
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
  const Plan plan = make_plan(args);
  if (args.dbias.data == nullptr || are_few(args, plan)) return 0;
  return plan.rows.num_blocks * args.width * static_cast<int64_t>(sizeof(float));
}

cudaError_t add_dropped_backward(const AddDroppedBackwardArgs& args, cudaStream_t stream) {
  if (args.width == 0) return cudaSuccess;
  const Plan plan = make_plan(args);
  if (are_few(args, plan)) {
    dispatch_stream(args.stream, args.product,
                    [&](auto t, auto g) { backward_few<decltype(t), decltype(g)>(args, stream); });
    return cudaGetLastError();
  }
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
