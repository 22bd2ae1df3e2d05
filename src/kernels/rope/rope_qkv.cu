// A thread owns one run of 8 (or 1) pairs of a row and walks over the heads of its share, so that
// cos and sin are read once per share. No shared memory; 80 registers. Bound by memory
// traffic.
#include <algorithm>
#include <limits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/rope/rope_qkv.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
// Fewer threads than this leave the chip idle: then the heads are shared out over more blocks.
constexpr int64_t kEnoughThreads = 132 * 1024;
constexpr int64_t kSmallShare = 3;  // heads per thread then

template <int N>
struct Angle {
  float cos[N];
  float sin[N];
};

template <int N>
__device__ __forceinline__ void rotate(float (&x1)[N], float (&x2)[N], const Angle<N>& a,
                                       float sign) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float first = x1[i];
    const float sin = sign * a.sin[i];
    x1[i] = first * a.cos[i] - x2[i] * sin;
    x2[i] = x2[i] * a.cos[i] + first * sin;
  }
}

/// The place of this thread: row, first column of its run, its heads [begin, end) of H + 2G.
struct Place {
  int64_t row;
  int column;
  int begin;
  int end;
  bool valid;  // false for rows that must come out as zero
};

template <int N>
__device__ __forceinline__ Place find_place(const RopeQkvShape& s, uint32_t runs, int share) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const auto [row, run] = pack::RowWalk(first, runs).at(threadIdx.x);
  Place p;
  p.row = row;
  p.column = static_cast<int>(run) * N;
  p.begin = blockIdx.y * share;
  p.end = p.begin + share;
  p.valid = row < s.num_rows && (s.rows_valid == nullptr || row < *s.rows_valid);
  return p;
}

template <int N>
__device__ __forceinline__ Angle<N> load_angle(const RopeQkvShape& s, const Place& p) {
  const int64_t at = static_cast<int64_t>(s.positions[p.row]) * (s.head_dim / 2) + p.column;
  Angle<N> a;
  pack::load<N>(s.cos + at, a.cos);
  pack::load<N>(s.sin + at, a.sin);
  return a;
}

/// One tensor of heads as a thread sees it: the pointer stands at its row and run. A tensor that is
/// not present counts as zero.
template <class T>
struct Strip {
  T* data;
  int64_t head_stride;
  bool present;
};

/// Turns one run of pairs by the angle where kRotate and stores it.
template <class T, int N, bool kRotate>
__device__ __forceinline__ void put(const pack::Raw<T, N>& first, const pack::Raw<T, N>& second,
                                    T* to, int half, const Angle<N>& angle, float sign) {
  float x1[N], x2[N];
  pack::expand(first, x1);
  pack::expand(second, x2);
  if constexpr (kRotate) rotate<N>(x1, x2, angle, sign);
  pack::store<N>(to, x1);
  pack::store<N>(to + half, x2);
}

/// Moves heads [begin, end) of `in` to `out`, turned by the angle where kRotate; zero where `in`
/// is not present. Two heads at a time: four loads in flight.
template <class T, int N, bool kRotate>
__device__ __forceinline__ void move_heads(Strip<const T> in, Strip<T> out, int begin, int end,
                                           int half, const Angle<N>& angle, float sign) {
  T* to = out.data + begin * out.head_stride;
  if (!in.present) {
    const float zero[N] = {};
    for (int h = begin; h < end; ++h, to += out.head_stride) {
      pack::store<N>(to, zero);
      pack::store<N>(to + half, zero);
    }
    return;
  }
  const T* from = in.data + begin * in.head_stride;
  int h = begin;
  for (; h + 1 < end; h += 2, from += 2 * in.head_stride, to += 2 * out.head_stride) {
    const T* next = from + in.head_stride;
    const auto a1 = pack::fetch<N>(from), a2 = pack::fetch<N>(from + half);
    const auto b1 = pack::fetch<N>(next), b2 = pack::fetch<N>(next + half);
    put<T, N, kRotate>(a1, a2, to, half, angle, sign);
    put<T, N, kRotate>(b1, b2, to + out.head_stride, half, angle, sign);
  }
  if (h < end) {
    put<T, N, kRotate>(pack::fetch<N>(from), pack::fetch<N>(from + half), to, half, angle, sign);
  }
}

/// The share of this thread of all three tensors. `in` and `out` have the pointers of q, k, v.
template <class T, int N>
__device__ __forceinline__ void move_all(const RopeQkvShape& s, const Place& p,
                                         const Strip<const T> (&in)[3], const Strip<T> (&out)[3],
                                         float sign) {
  Angle<N> angle = {};
  if (p.valid) angle = load_angle<N>(s, p);
  const int half = static_cast<int>(s.head_dim / 2);
  const int h = static_cast<int>(s.num_heads), g = static_cast<int>(s.num_kv_heads);
  move_heads<T, N, true>(in[0], out[0], p.begin, min(p.end, h), half, angle, sign);
  move_heads<T, N, true>(in[1], out[1], max(p.begin - h, 0), min(p.end - h, g), half, angle, sign);
  move_heads<T, N, false>(in[2], out[2], max(p.begin - h - g, 0), min(p.end - h - g, g), half,
                          angle, sign);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 3)
    rope_qkv_forward_kernel(RopeQkvShape s, const T* __restrict__ qkv, T* __restrict__ q,
                            T* __restrict__ k, T* __restrict__ v, uint32_t runs, int share) {
  await_previous_kernel();
  const Place p = find_place<N>(s, runs, share);
  if (p.row >= s.num_rows) return;
  const int64_t h = s.num_heads, g = s.num_kv_heads, e = s.head_dim;
  const T* row = qkv + p.row * (h + 2 * g) * e + p.column;
  const Strip<const T> in[3] = {
      {row, e, p.valid}, {row + h * e, e, p.valid}, {row + (h + g) * e, e, p.valid}};
  const Strip<T> out[3] = {{q + p.row * h * e + p.column, e, true},
                           {k + p.row * g * e + p.column, e, true},
                           {v + p.row * g * e + p.column, e, true}};
  move_all<T, N>(s, p, in, out, 1.0f);
}

struct HeadStrides {  // of dq, dk, dv
  int64_t row[3];
  int64_t head[3];
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 3)
    rope_qkv_backward_kernel(RopeQkvShape s, const T* __restrict__ dq, const T* __restrict__ dk,
                             const T* __restrict__ dv, HeadStrides strides, T* __restrict__ d_qkv,
                             uint32_t runs, int share) {
  await_previous_kernel();
  const Place p = find_place<N>(s, runs, share);
  if (p.row >= s.num_rows) return;
  const int64_t h = s.num_heads, g = s.num_kv_heads, e = s.head_dim;
  const T* heads[3] = {dq, dk, dv};
  Strip<const T> in[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    in[i] = {heads[i] + p.row * strides.row[i] + p.column, strides.head[i],
             p.valid && heads[i] != nullptr};
  }
  T* row = d_qkv + p.row * (h + 2 * g) * e + p.column;
  const Strip<T> out[3] = {{row, e, true}, {row + h * e, e, true}, {row + (h + g) * e, e, true}};
  move_all<T, N>(s, p, in, out, -1.0f);
}

struct Launch {
  dim3 grid;
  uint32_t runs;
  int share;
};

template <int N>
Launch plan(const RopeQkvShape& s) {
  const int64_t heads = s.num_heads + 2 * s.num_kv_heads;
  const int64_t runs = s.head_dim / (2 * N);
  const int64_t num_items = s.num_rows * runs;
  const int64_t share = num_items >= kEnoughThreads ? heads : std::min(heads, kSmallShare);
  const dim3 grid(static_cast<unsigned>(pack::ceil_div(num_items, kThreads)),
                  static_cast<unsigned>(pack::ceil_div(heads, share)));
  return {grid, static_cast<uint32_t>(runs), static_cast<int>(share)};
}

template <class T, int N>
cudaError_t forward(const RopeQkvArgs& a, cudaStream_t stream) {
  const Launch launch = plan<N>(a.shape);
  launch_kernel(rope_qkv_forward_kernel<T, N>, launch.grid, kThreads, 0, stream, a.shape,
                static_cast<const T*>(a.qkv), static_cast<T*>(a.q), static_cast<T*>(a.k),
                static_cast<T*>(a.v), launch.runs, launch.share);
  return cudaGetLastError();
}

template <class T, int N>
cudaError_t backward(const RopeQkvBackwardArgs& a, cudaStream_t stream) {
  const Launch launch = plan<N>(a.shape);
  const HeadStrides strides{{a.dq.row_stride, a.dk.row_stride, a.dv.row_stride},
                            {a.dq.head_stride, a.dk.head_stride, a.dv.head_stride}};
  launch_kernel(rope_qkv_backward_kernel<T, N>, launch.grid, kThreads, 0, stream, a.shape,
                static_cast<const T*>(a.dq.data), static_cast<const T*>(a.dk.data),
                static_cast<const T*>(a.dv.data), strides, static_cast<T*>(a.d_qkv), launch.runs,
                launch.share);
  return cudaGetLastError();
}

bool empty(const RopeQkvShape& s) {
  return s.num_rows == 0 || s.head_dim == 0 || s.num_heads + 2 * s.num_kv_heads == 0;
}

/// head_dim and the number of heads are 32-bit in the kernels, and heads are blocks in y.
bool too_large(const RopeQkvShape& s) {
  return s.head_dim > std::numeric_limits<int32_t>::max() ||
         s.num_heads + 2 * s.num_kv_heads > 65535;
}

bool wide_tables(const RopeQkvShape& s) {
  return s.head_dim % (2 * pack::kWide) == 0 && pack::aligned16(s.cos, s.sin);
}

bool wide_heads(const RopeHeads& h) {
  return h.data == nullptr || (pack::aligned16(h.data) && h.row_stride % pack::kWide == 0 &&
                               h.head_stride % pack::kWide == 0);
}

}  // namespace

cudaError_t rope_qkv_forward(const RopeQkvArgs& a, cudaStream_t stream) {
  if (empty(a.shape)) return cudaSuccess;
  if (too_large(a.shape)) return cudaErrorInvalidValue;
  const bool wide = wide_tables(a.shape) && pack::aligned16(a.qkv, a.q, a.k, a.v);
  if (a.shape.element == ElementType::kFloat32) {
    return wide ? forward<float, pack::kWide>(a, stream) : forward<float, 1>(a, stream);
  }
  return wide ? forward<__nv_bfloat16, pack::kWide>(a, stream)
              : forward<__nv_bfloat16, 1>(a, stream);
}

cudaError_t rope_qkv_backward(const RopeQkvBackwardArgs& a, cudaStream_t stream) {
  if (empty(a.shape)) return cudaSuccess;
  if (too_large(a.shape)) return cudaErrorInvalidValue;
  const bool wide = wide_tables(a.shape) && wide_heads(a.dq) && wide_heads(a.dk) &&
                    wide_heads(a.dv) && pack::aligned16(a.d_qkv);
  if (a.shape.element == ElementType::kFloat32) {
    return wide ? backward<float, pack::kWide>(a, stream) : backward<float, 1>(a, stream);
  }
  return wide ? backward<__nv_bfloat16, pack::kWide>(a, stream)
              : backward<__nv_bfloat16, 1>(a, stream);
}

}  // namespace longship::kernels
