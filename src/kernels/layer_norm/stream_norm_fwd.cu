// Forward. A team of width / 8 threads holds a row in registers for the branch, the mean, the
// variance around it and y; factor and shift stay in registers for all rows of the block, which are
// rows of one group. Bound by memory: for a stream in fp32 and products in bf16 6 bytes an element
// (h, y), with a branch 12 (h, branch, h_out, y). Two dropouts draw four Philox blocks for eight
// elements, 160 wide multiplications, which take a fifth of that time. Shared memory 1 KiB.
#include <cuda_bf16.h>

#include "kernels/common/launch.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/layer_norm/stream_branch.cuh"

namespace longship::kernels {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kSmThreads = 1024;
constexpr int kN = kColumnsPerThread;

template <class T, class G, bool kAdd>
__global__ void __launch_bounds__(kMaxRowThreads, 2)
    stream_layer_norm_forward_kernel(const __grid_constant__ StreamNormArgs a, const RowPlan plan) {
  await_previous_kernel();
  __shared__ TeamSlots<1> mean_slots[kMaxTeams];
  __shared__ TeamSlots<1> variance_slots[kMaxTeams];
  clear_slots(mean_slots);
  clear_slots(variance_slots);
  const TeamRows rows = team_rows(plan);
  const int column = threadIdx.x * kN;
  const bool active = owns_columns(plan);
  float factor[kN], shift[kN];
  if (active) {
    load_factor(a.scale, a.plus_one, rows.group, column, factor);
    load_param(a.shift, rows.group, column, 0.0f, shift);
  }
  const int64_t key = kAdd ? branch_key(a.branch, rows.group) : 0;
  const uint32_t step = static_cast<uint32_t>(rows.step);
  uint32_t row = static_cast<uint32_t>(rows.first);
  for (int left = rows.count; left > 0; --left, row += step) {
    const uint32_t at = vector_at(plan, row);
    float x[kN] = {};
    if (active) {
      const Vec<T, kN> h = load_at<T>(a.h, at);
      if constexpr (kAdd) {
        float v[kN];
        unpack(load_at<G>(a.branch.values, at), v);
        drop_branch<G>(a.branch, key, run_in_sample(plan, rows, row), v);
        unpack(h, x);
#pragma unroll
        for (int i = 0; i < kN; ++i) x[i] += v[i];
        unpack(store_at<T>(a.h_out, at, x), x);
      } else {
        unpack(h, x);
      }
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
      for (int i = 0; i < kN; ++i) x[i] = x[i] * r * factor[i] + shift[i];
      store_at<G>(a.y, at, x);
    }
  }
}

/// Any width and alignment: a block of kBlockThreads for a row, which it reads three times.
template <class T, class G>
__global__ void __launch_bounds__(kBlockThreads)
    stream_layer_norm_forward_any_kernel(const __grid_constant__ StreamNormArgs a,
                                         const RowPlan plan) {
  await_previous_kernel();
  __shared__ float shared[32];
  const TeamRows rows = team_rows(plan);
  const bool add = a.branch.values != nullptr;
  const int64_t key = add ? branch_key(a.branch, rows.group) : 0;
  int64_t row = rows.first;
  for (int left = rows.count; left > 0; --left, row += rows.step) {
    const int64_t base = row * a.width;
    const int64_t in_sample = base - rows.group * plan.rows_per_group * a.width;
    const T* h = static_cast<const T*>(a.h) + base;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += kBlockThreads) {
      float x = to_float(h[i]);
      if (add) {
        const float v = to_float(static_cast<const G*>(a.branch.values)[base + i]);
        const T stored = from_float<T>(
            x + drop_branch_at<G>(a.branch, key, i, static_cast<uint64_t>(in_sample + i), v));
        static_cast<T*>(a.h_out)[base + i] = stored;
        x = to_float(stored);
      }
      sum += x;
    }
    const float mean = block_sum(sum, shared) * plan.inverse_width;
    // Each thread rereads the columns that it wrote itself.
    const T* x_row = add ? static_cast<const T*>(a.h_out) + base : h;
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
      const float y =
          (to_float(x_row[i]) - mean) * r * factor_at(a.scale, a.plus_one, rows.group, i) +
          param_at(a.shift, rows.group, i, 0.0f);
      static_cast<G*>(a.y)[base + i] = from_float<G>(y);
    }
  }
}

template <class T, class G>
void launch(const StreamNormArgs& a, cudaStream_t stream) {
  const bool vectors = fits_teams(a.num_rows, a.width) && is_aligned16(a.h) &&
                       is_aligned16(a.branch.values) && is_aligned16(a.h_out) && is_aligned16(a.y);
  const int threads = vectors ? team_threads(a.width) : kBlockThreads;
  const RowPlan plan =
      plan_rows(a.num_rows, a.num_groups, a.width, threads, kBlockThreads, kSmThreads);
  const dim3 grid(static_cast<unsigned>(plan.num_blocks));
  const dim3 block(static_cast<unsigned>(plan.threads), static_cast<unsigned>(plan.teams));
  if (!vectors) {
    launch_kernel(stream_layer_norm_forward_any_kernel<T, G>, grid, block, 0, stream, a, plan);
  } else if (a.branch.values != nullptr) {
    launch_kernel(stream_layer_norm_forward_kernel<T, G, true>, grid, block, 0, stream, a, plan);
  } else {
    launch_kernel(stream_layer_norm_forward_kernel<T, G, false>, grid, block, 0, stream, a, plan);
  }
}

}  // namespace

cudaError_t stream_norm_forward(const StreamNormArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  dispatch_stream(args.stream, args.product,
                  [&](auto t, auto g) { launch<decltype(t), decltype(g)>(args, stream); });
  return cudaGetLastError();
}

}  // namespace longship::kernels
