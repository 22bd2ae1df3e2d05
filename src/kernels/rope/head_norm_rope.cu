// A team of E / 16 lanes of one warp holds a head in registers, 8 pairs a lane: two runs of 8
// adjacent elements, E / 2 apart. It walks over a share of the heads of its rows with weight, cos
// and sin in registers; blockIdx.y numbers the shares of queries, keys and (backward) values.
// Backward, the sums over rows and heads of the weight's gradient stay in registers; then one fp32
// row of partial sums a block and share, added up by column_sums. 79 registers in bf16, 128
// backward; 16 KiB of shared memory backward. Bound by memory traffic. Widths that make no team: a
// warp for a head, which it reads twice.
#include "kernels/rope/head_norm_rope.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <limits>

#include "kernels/common/column_sums.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/param_rows.cuh"
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_plan.h"
#include "kernels/common/vec.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kN = 8;             // adjacent elements of a run
constexpr int kMaxTeamDim = 512;  // a whole warp
constexpr int kMaxShare = 8;      // heads that a team walks over
// Fewer threads than this leave the chip idle: then shares are smaller.
constexpr int64_t kEnoughThreads = kNumSms * 1024;
// Blocks of the backward pass, which walk over rows: a few waves, so that the last is a small part.
constexpr int64_t kBackwardBlocks = kNumSms * 8;
constexpr int64_t kAnyBackwardBlocks = kNumSms * 16;  // of one warp

/// Who works on what. A function of the shape only, so that sums have the same order in every run.
struct Plan {
  bool teams = false;  // else a warp a head
  int lanes = 1;       // of a team
  int share = 1;       // heads a block of a share
  int q_shares = 0, k_shares = 0;
  int blocks = 0;  // in x, which share the rows
  int steps = 1;   // rows that a team takes: first, first + stride, ...
  int stride = 0;
};

/// The heads [begin, end) of one kind that this block works on; `index` among the shares of the
/// kind.
struct Share {
  enum Kind { kQuery, kKey, kValue } kind;
  int begin, end, index;
};

__device__ inline Share find_share(const HeadNormRopeShape& s, const Plan& plan) {
  Share share{Share::kQuery, 0, static_cast<int>(s.num_heads), static_cast<int>(blockIdx.y)};
  if (share.index >= plan.q_shares) {
    share.index -= plan.q_shares;
    share.kind = Share::kKey;
    share.end = static_cast<int>(s.num_kv_heads);
    if (share.index >= plan.k_shares) {
      share.index -= plan.k_shares;
      share.kind = Share::kValue;
    }
  }
  share.begin = share.index * plan.share;
  share.end = min(share.end, share.begin + plan.share);
  return share;
}

/// Element of a row of qkv at which the share begins.
__device__ inline int64_t first_column(const HeadNormRopeShape& s, const Share& share) {
  int64_t head = share.begin;
  if (share.kind != Share::kQuery) head += s.num_heads;
  if (share.kind == Share::kValue) head += s.num_kv_heads;
  return head * s.head_dim;
}

__device__ inline int64_t row_width(const HeadNormRopeShape& s) {
  return (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
}

/// The first row of this thread's team.
__device__ inline int64_t team_row(const Plan& plan) {
  const int teams = kThreads / plan.lanes;
  return static_cast<int64_t>(blockIdx.x) * teams + static_cast<int>(threadIdx.x) / plan.lanes;
}

/// Sums of N values over the lanes of a team, given to each of them. All lanes of the warp take
/// part.
template <int N>
__device__ inline void team_sums(float (&values)[N], int lanes) {
  for (int offset = lanes >> 1; offset > 0; offset >>= 1) {
#pragma unroll
    for (int n = 0; n < N; ++n) values[n] += __shfl_xor_sync(0xffffffffu, values[n], offset);
  }
}

/// The two runs of a head that a lane holds.
template <class T>
struct Runs {
  Vec<T, kN> first = zero_vec<T, kN>();
  Vec<T, kN> second = zero_vec<T, kN>();
};

template <class T>
__device__ inline Runs<T> load_runs(const T* at, int64_t half, bool present) {
  Runs<T> runs;
  if (present) {
    runs.first = load_vec<T, kN>(at);
    runs.second = load_vec<T, kN>(at + half);
  }
  return runs;
}

template <class T>
__device__ inline void store_runs(T* at, int64_t half, const float (&first)[kN],
                                  const float (&second)[kN]) {
  store_vec(at, pack<T, kN>(first));
  store_vec(at + half, pack<T, kN>(second));
}

/// cos and sin of a row for the lane's pairs.
struct Angle {
  float cos[kN];
  float sin[kN];
};

__device__ inline Angle load_angle(const HeadNormRopeShape& s, int64_t row, int column) {
  Angle a;
  load_param(s.cos, row, column, 1.0f, a.cos);
  load_param(s.sin, row, column, 0.0f, a.sin);
  return a;
}

/// The lane's pairs turned by the angle; sign -1: back.
__device__ inline void rotate(float (&x1)[kN], float (&x2)[kN], const Angle& a, float sign) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float first = x1[i];
    const float sin = sign * a.sin[i];
    x1[i] = first * a.cos[i] - x2[i] * sin;
    x2[i] = x2[i] * a.cos[i] + first * sin;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    head_norm_rope_forward_kernel(const HeadNormRopeArgs a, const Plan plan) {
  await_previous_kernel();
  const HeadNormRopeShape& s = a.shape;
  const Share share = find_share(s, plan);
  const int lane = static_cast<int>(threadIdx.x) & (plan.lanes - 1);
  const int column = lane * kN;
  const int64_t row = team_row(plan);
  const bool present = row < s.num_rows;  // the others take part in the sums of their warp
  const int64_t half = s.head_dim / 2;
  const bool query = share.kind == Share::kQuery;
  const ParamRows& weight = query ? s.q_weight : s.k_weight;
  float w1[kN], w2[kN];
  load_param(weight, 0, column, 0.0f, w1);
  load_param(weight, 0, half + column, 0.0f, w2);
  Angle angle = {};
  if (present) angle = load_angle(s, row, column);
  const float inverse_dim = 1.0f / static_cast<float>(s.head_dim);
  const T* from =
      static_cast<const T*>(s.qkv) + row * row_width(s) + first_column(s, share) + column;
  const int64_t heads = query ? s.num_heads : s.num_kv_heads;
  T* to = static_cast<T*>(query ? a.q : a.k) + (row * heads + share.begin) * s.head_dim + column;
  Runs<T> next = load_runs(from, half, present);
  for (int left = share.end - share.begin; left > 0; --left) {
    const Runs<T> in = next;
    from += s.head_dim;
    next = load_runs(from, half, present && left > 1);
    float x1[kN], x2[kN];
    unpack(in.first, x1);
    unpack(in.second, x2);
    float sum[1] = {0.0f};
#pragma unroll
    for (int i = 0; i < kN; ++i) sum[0] += x1[i] * x1[i] + x2[i] * x2[i];
    team_sums(sum, plan.lanes);
    const float r = rsqrtf(sum[0] * inverse_dim + s.eps);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      x1[i] = x1[i] * r * w1[i];
      x2[i] = x2[i] * r * w2[i];
    }
    rotate(x1, x2, angle, 1.0f);
    if (present) store_runs(to, half, x1, x2);
    to += s.head_dim;
  }
}

/// Partial sums [blocks * shares of the kind, E] of the weights' gradients.
struct Partials {
  float* q = nullptr;
  float* k = nullptr;
};

__device__ inline float* partial_row(const HeadNormRopeShape& s, const Partials& partials,
                                     const Share& share) {
  float* base = share.kind == Share::kQuery ? partials.q : partials.k;
  return base + (static_cast<int64_t>(share.index) * gridDim.x + blockIdx.x) * s.head_dim;
}

__device__ inline const RopeHeads& gradient_of(const HeadNormRopeBackwardArgs& a,
                                               const Share& share) {
  return share.kind == Share::kQuery ? a.dq : share.kind == Share::kKey ? a.dk : a.dv;
}

/// Gradients of values: copied, or zero.
template <class T>
__device__ inline void move_values(const HeadNormRopeBackwardArgs& a, const Share& share,
                                   const Plan& plan, int64_t first, int column) {
  const HeadNormRopeShape& s = a.shape;
  const int64_t half = s.head_dim / 2;
  for (int step = 0; step < plan.steps; ++step) {
    const int64_t row = first + static_cast<int64_t>(step) * plan.stride;
    if (row >= s.num_rows) return;
    const T* from = static_cast<const T*>(a.dv.data) + row * a.dv.row_stride +
                    share.begin * a.dv.head_stride + column;
    T* to = static_cast<T*>(a.d_qkv) + row * row_width(s) + first_column(s, share) + column;
#pragma unroll 4
    for (int left = share.end - share.begin; left > 0; --left) {
      const Runs<T> in = load_runs(from, half, a.dv.data != nullptr);
      store_vec(to, in.first);
      store_vec(to + half, in.second);
      from += a.dv.head_stride;
      to += s.head_dim;
    }
  }
}

/// Adds the sums of the block's teams in a fixed order and writes the block's partial row. All
/// threads of the block call it.
__device__ inline void store_sums(float (&first)[kN], float (&second)[kN], int lanes,
                                  int64_t head_dim, float* partial) {
  __shared__ float sums[kWarps][kMaxTeamDim];
  for (int offset = lanes; offset < 32; offset <<= 1) {  // teams of the warp
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      first[i] += __shfl_xor_sync(0xffffffffu, first[i], offset);
      second[i] += __shfl_xor_sync(0xffffffffu, second[i], offset);
    }
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int half = static_cast<int>(head_dim / 2);
  if (lane < lanes) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      sums[warp][lane * kN + i] = first[i];
      sums[warp][half + lane * kN + i] = second[i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * half; i += kThreads) {
    float total = sums[0][i];
    for (int other = 1; other < kWarps; ++other) total += sums[other][i];
    partial[i] = total;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    head_norm_rope_backward_kernel(const HeadNormRopeBackwardArgs a, const Plan plan,
                                   const Partials partials) {
  await_previous_kernel();
  const HeadNormRopeShape& s = a.shape;
  const Share share = find_share(s, plan);
  const int lane = static_cast<int>(threadIdx.x) & (plan.lanes - 1);
  const int column = lane * kN;
  const int64_t first = team_row(plan);
  if (share.kind == Share::kValue) {
    move_values<T>(a, share, plan, first, column);
    return;
  }
  const int64_t half = s.head_dim / 2;
  const ParamRows& weight = share.kind == Share::kQuery ? s.q_weight : s.k_weight;
  float w1[kN], w2[kN];
  load_param(weight, 0, column, 0.0f, w1);
  load_param(weight, 0, half + column, 0.0f, w2);
  const RopeHeads& gradient = gradient_of(a, share);
  const float inverse_dim = 1.0f / static_cast<float>(s.head_dim);
  float sum1[kN] = {}, sum2[kN] = {};
  for (int step = 0; step < plan.steps; ++step) {
    const int64_t row = first + static_cast<int64_t>(step) * plan.stride;
    const bool present = row < s.num_rows;  // the others take part in the sums of their warp
    Angle angle = {};
    if (present) angle = load_angle(s, row, column);
    const int64_t at = row * row_width(s) + first_column(s, share) + column;
    const T* from = static_cast<const T*>(s.qkv) + at;
    const T* dy = static_cast<const T*>(gradient.data) + row * gradient.row_stride +
                  share.begin * gradient.head_stride + column;
    T* to = static_cast<T*>(a.d_qkv) + at;
    for (int head = share.begin; head < share.end; ++head) {
      const Runs<T> in = load_runs(from, half, present);
      const Runs<T> g = load_runs(dy, half, present && gradient.data != nullptr);
      from += s.head_dim;
      dy += gradient.head_stride;
      float x1[kN], x2[kN], d1[kN], d2[kN];
      unpack(in.first, x1);
      unpack(in.second, x2);
      unpack(g.first, d1);
      unpack(g.second, d2);
      rotate(d1, d2, angle, -1.0f);
      float sums[2] = {0.0f, 0.0f};  // of x^2, of d x
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        sums[0] += x1[i] * x1[i] + x2[i] * x2[i];
        sums[1] += d1[i] * w1[i] * x1[i] + d2[i] * w2[i] * x2[i];
      }
      team_sums(sums, plan.lanes);
      if (!present) continue;
      const float r = rsqrtf(sums[0] * inverse_dim + s.eps);
      const float mean = sums[1] * r * inverse_dim;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        x1[i] *= r;
        x2[i] *= r;
        sum1[i] += d1[i] * x1[i];
        sum2[i] += d2[i] * x2[i];
        d1[i] = r * (d1[i] * w1[i] - x1[i] * mean);
        d2[i] = r * (d2[i] * w2[i] - x2[i] * mean);
      }
      store_runs(to, half, d1, d2);
      to += s.head_dim;
    }
  }
  store_sums(sum1, sum2, plan.lanes, s.head_dim, partial_row(s, partials, share));
}

/// Any width and alignment: a block of one warp, a head at a time.
template <class T>
__global__ void __launch_bounds__(32)
    head_norm_rope_forward_any_kernel(const HeadNormRopeArgs a, const Plan plan) {
  await_previous_kernel();
  const HeadNormRopeShape& s = a.shape;
  const Share share = find_share(s, plan);
  const int64_t row = blockIdx.x;
  const int64_t half = s.head_dim / 2;
  const bool query = share.kind == Share::kQuery;
  const ParamRows& weight = query ? s.q_weight : s.k_weight;
  const int64_t heads = query ? s.num_heads : s.num_kv_heads;
  const T* from = static_cast<const T*>(s.qkv) + row * row_width(s) + first_column(s, share);
  T* to = static_cast<T*>(query ? a.q : a.k) + (row * heads + share.begin) * s.head_dim;
  for (int left = share.end - share.begin; left > 0; --left) {
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < s.head_dim; i += 32) {
      const float x = to_float(from[i]);
      sum += x * x;
    }
    const float r = rsqrtf(warp_sum(sum) / static_cast<float>(s.head_dim) + s.eps);
    for (int64_t i = threadIdx.x; i < half; i += 32) {
      const float n1 = to_float(from[i]) * r * param_at(weight, 0, i, 0.0f);
      const float n2 = to_float(from[half + i]) * r * param_at(weight, 0, half + i, 0.0f);
      const float cos = param_at(s.cos, row, i, 1.0f), sin = param_at(s.sin, row, i, 0.0f);
      to[i] = from_float<T>(n1 * cos - n2 * sin);
      to[half + i] = from_float<T>(n2 * cos + n1 * sin);
    }
    from += s.head_dim;
    to += s.head_dim;
  }
}

/// One head of the backward pass. `dy` null: zero. `partial` is the block's row of sums, of which
/// every lane adds to its own columns.
template <class T>
__device__ inline void backward_head(const HeadNormRopeShape& s, const ParamRows& weight,
                                     int64_t row, const T* x, const T* dy, T* dx, float* partial,
                                     bool first) {
  const int64_t half = s.head_dim / 2;
  const auto turned_back = [&](int64_t i, float& d1, float& d2) {
    const float g1 = dy == nullptr ? 0.0f : to_float(dy[i]);
    const float g2 = dy == nullptr ? 0.0f : to_float(dy[half + i]);
    const float cos = param_at(s.cos, row, i, 1.0f), sin = param_at(s.sin, row, i, 0.0f);
    d1 = g1 * cos + g2 * sin;
    d2 = g2 * cos - g1 * sin;
  };
  float squares = 0.0f, products = 0.0f;
  for (int64_t i = threadIdx.x; i < half; i += 32) {
    const float x1 = to_float(x[i]), x2 = to_float(x[half + i]);
    float d1, d2;
    turned_back(i, d1, d2);
    squares += x1 * x1 + x2 * x2;
    products += d1 * param_at(weight, 0, i, 0.0f) * x1;
    products += d2 * param_at(weight, 0, half + i, 0.0f) * x2;
  }
  const float dim = static_cast<float>(s.head_dim);
  const float r = rsqrtf(warp_sum(squares) / dim + s.eps);
  const float mean = warp_sum(products) * r / dim;
  const auto finish = [&](int64_t i, float d) {
    const float x_hat = to_float(x[i]) * r;
    partial[i] = first ? d * x_hat : partial[i] + d * x_hat;
    dx[i] = from_float<T>(r * (d * param_at(weight, 0, i, 0.0f) - x_hat * mean));
  };
  for (int64_t i = threadIdx.x; i < half; i += 32) {
    float d1, d2;
    turned_back(i, d1, d2);
    finish(i, d1);
    finish(half + i, d2);
  }
}

template <class T>
__global__ void __launch_bounds__(32)
    head_norm_rope_backward_any_kernel(const HeadNormRopeBackwardArgs a, const Plan plan,
                                       const Partials partials) {
  await_previous_kernel();
  const HeadNormRopeShape& s = a.shape;
  const Share share = find_share(s, plan);
  const RopeHeads& gradient = gradient_of(a, share);
  const bool value = share.kind == Share::kValue;
  const ParamRows& weight = share.kind == Share::kQuery ? s.q_weight : s.k_weight;
  float* partial = value ? nullptr : partial_row(s, partials, share);
  for (int64_t row = blockIdx.x; row < s.num_rows; row += plan.stride) {
    const int64_t at = row * row_width(s) + first_column(s, share);
    const T* x = static_cast<const T*>(s.qkv) + at;
    T* dx = static_cast<T*>(a.d_qkv) + at;
    for (int head = share.begin; head < share.end; ++head, x += s.head_dim, dx += s.head_dim) {
      const T* dy = gradient.data == nullptr
                        ? nullptr
                        : static_cast<const T*>(gradient.data) + row * gradient.row_stride +
                              head * gradient.head_stride;
      if (!value) {
        const bool first = row == blockIdx.x && head == share.begin;
        backward_head(s, weight, row, x, dy, dx, partial, first);
        continue;
      }
      for (int64_t i = threadIdx.x; i < s.head_dim; i += 32) {
        dx[i] = dy == nullptr ? from_float<T>(0.0f) : dy[i];
      }
    }
  }
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

bool team_width(int64_t head_dim) {
  return head_dim >= 2 * kN && head_dim <= kMaxTeamDim && (head_dim & (head_dim - 1)) == 0;
}

/// Shares of H and G heads; `kinds`: 1 for keys alone, 2 with values.
void plan_shares(const HeadNormRopeShape& s, int64_t threads, int kinds, Plan& plan) {
  const int64_t heads = std::max(s.num_heads, s.num_kv_heads);
  int64_t share = std::min<int64_t>(kMaxShare, heads);
  const auto shares = [&] {
    return ceil_div(s.num_heads, share) + kinds * ceil_div(s.num_kv_heads, share);
  };
  while (share > 1 && threads * shares() < kEnoughThreads) share = ceil_div(share, 2);
  plan.share = static_cast<int>(share);
  plan.q_shares = static_cast<int>(ceil_div(s.num_heads, share));
  plan.k_shares = static_cast<int>(ceil_div(s.num_kv_heads, share));
}

Plan plan_forward(const HeadNormRopeShape& s, bool aligned) {
  Plan plan;
  plan.teams = aligned && team_width(s.head_dim);
  plan.lanes = plan.teams ? static_cast<int>(s.head_dim / (2 * kN)) : 32;
  plan_shares(s, s.num_rows * plan.lanes, 1, plan);
  const int64_t rows = plan.teams ? kThreads / plan.lanes : 1;  // of a block
  plan.blocks = static_cast<int>(ceil_div(s.num_rows, rows));
  return plan;
}

Plan plan_backward(const HeadNormRopeShape& s, bool aligned) {
  Plan plan = plan_forward(s, aligned);
  if (s.num_rows == 0) return plan;
  plan_shares(s, s.num_rows * plan.lanes, 2, plan);
  const int64_t rows = plan.teams ? kThreads / plan.lanes : 1;
  const int64_t shares = plan.q_shares + 2 * plan.k_shares;
  const int64_t wanted =
      std::max<int64_t>(1, (plan.teams ? kBackwardBlocks : kAnyBackwardBlocks) / shares);
  const int64_t steps = ceil_div(s.num_rows, std::min<int64_t>(plan.blocks, wanted) * rows);
  plan.blocks = static_cast<int>(ceil_div(s.num_rows, steps * rows));
  plan.steps = static_cast<int>(steps);
  plan.stride = static_cast<int>(plan.blocks * rows);
  return plan;
}

bool empty(const HeadNormRopeShape& s) {
  return s.num_rows == 0 || s.head_dim == 0 || s.num_heads + s.num_kv_heads == 0;
}

/// Rows and heads are 32-bit in the kernels, and shares of heads are blocks in y.
bool too_large(const HeadNormRopeShape& s) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return s.num_rows > kMax / 2 || s.head_dim > kMax || s.num_heads + 2 * s.num_kv_heads > 65535;
}

bool aligned(const RopeHeads& h) {
  return h.data == nullptr ||
         (is_aligned16(h.data) && h.row_stride % kN == 0 && h.head_stride % kN == 0);
}

Plan make_plan(const HeadNormRopeArgs& a) {
  return plan_forward(a.shape, is_aligned16(a.shape.qkv) && is_aligned16(a.q) && is_aligned16(a.k));
}

Plan make_plan(const HeadNormRopeBackwardArgs& a) {
  return plan_backward(a.shape, is_aligned16(a.shape.qkv) && is_aligned16(a.d_qkv) &&
                                    aligned(a.dq) && aligned(a.dk) && aligned(a.dv));
}

template <class T>
void forward(const HeadNormRopeArgs& a, cudaStream_t stream) {
  const Plan plan = make_plan(a);
  const dim3 grid(static_cast<unsigned>(plan.blocks),
                  static_cast<unsigned>(plan.q_shares + plan.k_shares));
  if (plan.teams) {
    launch_kernel(head_norm_rope_forward_kernel<T>, grid, kThreads, 0, stream, a, plan);
  } else {
    launch_kernel(head_norm_rope_forward_any_kernel<T>, grid, 32, 0, stream, a, plan);
  }
}

template <class T>
void backward(const HeadNormRopeBackwardArgs& a, const Plan& plan, const Partials& partials,
              cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.blocks),
                  static_cast<unsigned>(plan.q_shares + 2 * plan.k_shares));
  if (plan.teams) {
    launch_kernel(head_norm_rope_backward_kernel<T>, grid, kThreads, 0, stream, a, plan, partials);
  } else {
    launch_kernel(head_norm_rope_backward_any_kernel<T>, grid, 32, 0, stream, a, plan, partials);
  }
}

}  // namespace

cudaError_t head_norm_rope_forward(const HeadNormRopeArgs& args, cudaStream_t stream) {
  if (empty(args.shape)) return cudaSuccess;
  if (too_large(args.shape)) return cudaErrorInvalidValue;
  if (args.shape.element == ElementType::kFloat32) {
    forward<float>(args, stream);
  } else {
    forward<__nv_bfloat16>(args, stream);
  }
  return cudaGetLastError();
}

int64_t head_norm_rope_backward_workspace_bytes(const HeadNormRopeBackwardArgs& args) {
  if (empty(args.shape) || too_large(args.shape)) return 0;
  const Plan plan = make_plan(args);
  return static_cast<int64_t>(plan.blocks) * (plan.q_shares + plan.k_shares) * args.shape.head_dim *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t head_norm_rope_backward(const HeadNormRopeBackwardArgs& args, cudaStream_t stream) {
  const HeadNormRopeShape& s = args.shape;
  if (s.head_dim == 0) return cudaSuccess;
  if (too_large(s)) return cudaErrorInvalidValue;
  Partials partials;
  int64_t q_partials = 0, k_partials = 0;
  if (!empty(s)) {
    const Plan plan = make_plan(args);
    q_partials = static_cast<int64_t>(plan.blocks) * plan.q_shares;
    k_partials = static_cast<int64_t>(plan.blocks) * plan.k_shares;
    partials.q = args.workspace;
    partials.k = args.workspace + q_partials * s.head_dim;
    if (s.element == ElementType::kFloat32) {
      backward<float>(args, plan, partials, stream);
    } else {
      backward<__nv_bfloat16>(args, plan, partials, stream);
    }
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  const ColumnSum sums[] = {{partials.q, q_partials, args.dq_weight},
                            {partials.k, k_partials, args.dk_weight}};
  return column_sums(sums, 2, s.head_dim, stream);
}

}  // namespace longship::kernels
