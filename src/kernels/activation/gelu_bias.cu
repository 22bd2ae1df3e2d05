// Forward: one thread per run of 8 (or 1) columns of one row, flat over all rows.
// Backward: a block owns 32 runs of columns and a group of rows; every thread keeps the column sums
// of its run in registers over all its rows, eight row lanes are joined through shared memory (9
// KiB), and a second kernel adds the groups. 64 registers. Bound by memory traffic; the multipliers
// of dropout, two Philox blocks for eight elements, are drawn while the loads are on their way.
#include <algorithm>
#include <limits>

#include "kernels/activation/gelu.cuh"
#include "kernels/activation/gelu_bias.h"
#include "kernels/activation/pack.cuh"
#include "kernels/common/few_rows.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/random/dropout.cuh"

namespace longship::kernels {
namespace {

static_assert(kDropoutRun == pack::kWide && pack::kWide == few_rows::kRun);

constexpr int kThreads = 256;
constexpr int kForwardPacks = 2;    // runs per thread of the forward kernel
constexpr int kLanes = 32;          // runs of columns of a block: a warp reads one piece of a row
constexpr int kRowLanes = 8;        // rows that a block reads at a time
constexpr int kTargetBlocks = 528;  // four blocks on each of 132 multiprocessors: a single wave
constexpr int kTileColumns = kLanes * pack::kWide;
// Floats between element i and i + 1 of the runs in shared memory: with 36 neither the stores (one
// element of 32 runs) nor the loads (8 elements of 4 runs) of a warp meet in a bank.
constexpr int kRunStride = 36;

/// Multipliers of run `run` of `row`, rows of `per_row` runs.
template <int N>
__device__ __forceinline__ void draw(const GeluDropout& d, int64_t row, uint32_t per_row,
                                     uint32_t run, float (&m)[N]) {
  const auto in_batch = static_cast<uint32_t>(row);
  const uint32_t sample = in_batch / d.rows_per_sample;
  const uint64_t number = uint64_t{in_batch - sample * d.rows_per_sample} * per_row + run;
  if constexpr (N == 1) {
    m[0] = dropout_at(d.site, d.keys[sample], number);
  } else {
    dropout_run(d.site, d.keys[sample], static_cast<uint32_t>(number), m);
  }
}

template <class T>
__device__ __forceinline__ float rounded(float v) {
  return static_cast<float>(static_cast<T>(v));
}

template <class T, class B, int N, bool kDrop>
__global__ void __launch_bounds__(kThreads)
    gelu_bias_forward_kernel(const T* __restrict__ x, const B* __restrict__ bias, T* __restrict__ y,
                             int64_t num_packs, uint32_t per_row, GeluDropout dropout) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kForwardPacks);
  const pack::RowWalk walk(first, per_row);
  pack::Raw<T, N> raw[kForwardPacks];
#pragma unroll
  for (int k = 0; k < kForwardPacks; ++k) {
    const int64_t flat = first + k * kThreads + threadIdx.x;
    if (flat < num_packs) raw[k] = pack::fetch<N>(x + flat * N);
  }
#pragma unroll
  for (int k = 0; k < kForwardPacks; ++k) {
    const uint32_t offset = k * kThreads + threadIdx.x;
    const int64_t flat = first + offset;
    if (flat >= num_packs) break;
    const auto [row, run] = walk.at(offset);
    float v[N];
    float b[N];
    float m[N];
    if constexpr (kDrop) draw<N>(dropout, row, per_row, run, m);
    pack::expand(raw[k], v);
    pack::load<N>(bias + static_cast<int64_t>(run) * N, b);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float shifted = v[i] + b[i];
      v[i] = shifted * gelu_gate(shifted);
      if constexpr (kDrop) v[i] = rounded<T>(v[i]) * m[i];
    }
    pack::store<N>(y + flat * N, v);
  }
}

/// dx of one run, added to the column sums.
template <int N>
__device__ __forceinline__ void backward_run(float (&x)[N], const float (&g)[N],
                                             const float (&b)[N], float (&sum)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float shifted = x[i] + b[i];
    x[i] = g[i] * gelu_slope(shifted, gelu_gate(shifted));
    sum[i] += x[i];
  }
}

/// g <- gradient in front of the dropout.
template <class T, int N>
__device__ __forceinline__ void drop_gradient(const GeluDropout& d, int64_t row, int64_t width,
                                              int64_t column, float (&g)[N]) {
  float m[N];
  draw<N>(d, row, static_cast<uint32_t>(width / N), static_cast<uint32_t>(column / N), m);
#pragma unroll
  for (int i = 0; i < N; ++i) g[i] = rounded<T>(g[i] * m[i]);
}

template <class T, class B, int N, bool kDrop>
__global__ void __launch_bounds__(kThreads, kDrop && sizeof(T) == 4 ? 3 : 4)
    gelu_bias_backward_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                              const B* __restrict__ bias, T* __restrict__ dx,
                              float* __restrict__ partial, int64_t num_rows, int64_t width,
                              int64_t rows_per_group, GeluDropout dropout) {
  await_previous_kernel();
  __shared__ float sums[kRowLanes][N * kRunStride];
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * (kLanes * N);
  const int64_t column = tile + threadIdx.x * N;
  float sum[N] = {};
  if (column < width) {
    float b[N];
    pack::load<N>(bias + column, b);
    const int64_t begin = blockIdx.y * rows_per_group;
    const int64_t end = min(begin + rows_per_group, num_rows);
    int64_t row = begin + threadIdx.y;
    // Two rows at a time: four loads in flight before the first use.
    for (; row + kRowLanes < end; row += 2 * kRowLanes) {
      const int64_t at0 = row * width + column;
      const int64_t at1 = at0 + kRowLanes * width;
      float x0[N], x1[N], g0[N], g1[N];
      pack::load<N>(x + at0, x0);
      pack::load<N>(dy + at0, g0);
      pack::load<N>(x + at1, x1);
      pack::load<N>(dy + at1, g1);
      if constexpr (kDrop) {
        drop_gradient<T>(dropout, row, width, column, g0);
        drop_gradient<T>(dropout, row + kRowLanes, width, column, g1);
      }
      backward_run<N>(x0, g0, b, sum);
      pack::store<N>(dx + at0, x0);
      backward_run<N>(x1, g1, b, sum);
      pack::store<N>(dx + at1, x1);
    }
    if (row < end) {
      const int64_t at = row * width + column;
      float x0[N], g0[N];
      pack::load<N>(x + at, x0);
      pack::load<N>(dy + at, g0);
      if constexpr (kDrop) drop_gradient<T>(dropout, row, width, column, g0);
      backward_run<N>(x0, g0, b, sum);
      pack::store<N>(dx + at, x0);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sums[threadIdx.y][i * kRunStride + threadIdx.x] = sum[i];
  __syncthreads();
  const int t =
      threadIdx.y * kLanes + threadIdx.x;  // column t of the tile: element t % N of run t / N
  const int64_t out = tile + t;
  if (t >= N * kLanes || out >= width) return;
  const int place = (t % N) * kRunStride + t / N;
  float total = sums[0][place];
#pragma unroll
  for (int i = 1; i < kRowLanes; ++i) total += sums[i][place];
  partial[blockIdx.y * width + out] = total;
}

/// The same for few rows, in one launch: sums over rows are final.
template <class T, class B, bool kDrop>
__global__ void __launch_bounds__(few_rows::kThreads)
    gelu_bias_backward_few_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                                  const B* __restrict__ bias, T* __restrict__ dx,
                                  B* __restrict__ dbias, int64_t num_rows, int64_t width,
                                  GeluDropout dropout) {
  await_previous_kernel();
  constexpr int N = few_rows::kRun;
  __shared__ few_rows::Shared shared;
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * few_rows::kTile;
  const int64_t column = tile + threadIdx.x * N;
  float sum[N] = {};
  if (column < width) {
    float b[N];
    pack::load<N>(bias + column, b);
#pragma unroll 2
    for (int64_t row = threadIdx.y; row < num_rows; row += few_rows::kRowLanes) {
      const int64_t at = row * width + column;
      float x0[N], g0[N];
      pack::load<N>(x + at, x0);
      pack::load<N>(dy + at, g0);
      if constexpr (kDrop) drop_gradient<T>(dropout, row, width, column, g0);
      backward_run<N>(x0, g0, b, sum);
      pack::store<N>(dx + at, x0);
    }
  }
  const few_rows::Total total = few_rows::join(sum, shared);
  if (total.column >= 0 && tile + total.column < width) {
    dbias[tile + total.column] = static_cast<B>(total.sum);
  }
}

template <class B>
__global__ void __launch_bounds__(kThreads)
    gelu_bias_sum_kernel(const float* __restrict__ partial, B* __restrict__ dbias,
                         int64_t num_groups, int64_t width) {
  await_previous_kernel();
  __shared__ float sums[kRowLanes][kLanes];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 4
    for (int64_t g = threadIdx.y; g < num_groups; g += kRowLanes)
      sum += partial[g * width + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
#pragma unroll
  for (int i = 1; i < kRowLanes; ++i) sum += sums[i][threadIdx.x];
  dbias[column] = static_cast<B>(sum);
}

template <class T, class B, int N>
cudaError_t forward(const GeluBiasArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_rows * per_row;
  const auto kernel = a.dropout.keys != nullptr ? gelu_bias_forward_kernel<T, B, N, true>
                                                : gelu_bias_forward_kernel<T, B, N, false>;
  launch_kernel(kernel, static_cast<unsigned>(pack::ceil_div(num_packs, kThreads * kForwardPacks)),
                kThreads, 0, stream, static_cast<const T*>(a.x), static_cast<const B*>(a.bias),
                static_cast<T*>(a.y), num_packs, static_cast<uint32_t>(per_row), a.dropout);
  return cudaGetLastError();
}

template <class T, class B>
cudaError_t forward_any(const GeluBiasArgs& a, cudaStream_t stream) {
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.x, a.bias, a.y);
  return wide ? forward<T, B, pack::kWide>(a, stream) : forward<T, B, 1>(a, stream);
}

template <class T, class B>
cudaError_t backward_few(const GeluBiasBackwardArgs& a, cudaStream_t stream) {
  const auto kernel = a.dropout.keys != nullptr ? gelu_bias_backward_few_kernel<T, B, true>
                                                : gelu_bias_backward_few_kernel<T, B, false>;
  launch_kernel(kernel, static_cast<unsigned>(few_rows::num_tiles(a.width)),
                dim3(few_rows::kRuns, few_rows::kRowLanes), 0, stream, static_cast<const T*>(a.dy),
                static_cast<const T*>(a.x), static_cast<const B*>(a.bias), static_cast<T*>(a.dx),
                static_cast<B*>(a.dbias), a.num_rows, a.width, a.dropout);
  return cudaGetLastError();
}

template <class T, class B, int N>
cudaError_t backward(const GeluBiasBackwardArgs& a, cudaStream_t stream) {
  const int64_t groups = gelu_bias_num_partials(a.num_rows, a.width);
  const dim3 block(kLanes, kRowLanes);
  if (groups > 0) {
    const dim3 grid(static_cast<unsigned>(pack::ceil_div(a.width, kLanes * N)),
                    static_cast<unsigned>(groups));
    const auto kernel = a.dropout.keys != nullptr ? gelu_bias_backward_kernel<T, B, N, true>
                                                  : gelu_bias_backward_kernel<T, B, N, false>;
    launch_kernel(kernel, grid, block, 0, stream, static_cast<const T*>(a.dy),
                  static_cast<const T*>(a.x), static_cast<const B*>(a.bias), static_cast<T*>(a.dx),
                  a.partial, a.num_rows, a.width, pack::ceil_div(a.num_rows, groups), a.dropout);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  // Without rows this writes the zero gradient.
  launch_kernel(gelu_bias_sum_kernel<B>, static_cast<unsigned>(pack::ceil_div(a.width, kLanes)),
                block, 0, stream, a.partial, static_cast<B*>(a.dbias), groups, a.width);
  return cudaGetLastError();
}

template <class T, class B>
cudaError_t backward_any(const GeluBiasBackwardArgs& a, cudaStream_t stream) {
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.dy, a.x, a.bias, a.dx);
  if (!wide) return backward<T, B, 1>(a, stream);
  return a.num_rows <= few_rows::kMostRows ? backward_few<T, B>(a, stream)
                                           : backward<T, B, pack::kWide>(a, stream);
}

bool too_large(int64_t num_rows, int64_t width, const GeluDropout& dropout) {
  if (width > std::numeric_limits<int32_t>::max()) return true;
  // Rows, and runs of a sample, are counted in 32 bits.
  constexpr int64_t kMaxSample = int64_t{1} << 33, kMaxRows = std::numeric_limits<uint32_t>::max();
  return dropout.keys != nullptr &&
         (num_rows > kMaxRows || dropout.rows_per_sample > kMaxSample / width);
}

}  // namespace

int64_t gelu_bias_num_partials(int64_t num_rows, int64_t width) {
  if (num_rows == 0 || width == 0) return 0;
  const int64_t tiles = pack::ceil_div(width, kTileColumns);
  const int64_t wanted =
      std::clamp<int64_t>(kTargetBlocks / tiles, 1, pack::ceil_div(num_rows, kRowLanes));
  // As many groups as are not empty when every group but the last has the same number of rows.
  return pack::ceil_div(num_rows, pack::ceil_div(num_rows, wanted));
}

cudaError_t gelu_bias_forward(const GeluBiasArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0 || a.width == 0) return cudaSuccess;
  if (too_large(a.num_rows, a.width, a.dropout)) return cudaErrorInvalidValue;
  using bf16 = __nv_bfloat16;
  const bool bias_fp32 = a.bias_element == ElementType::kFloat32;
  if (a.element == ElementType::kFloat32) {
    return bias_fp32 ? forward_any<float, float>(a, stream) : forward_any<float, bf16>(a, stream);
  }
  return bias_fp32 ? forward_any<bf16, float>(a, stream) : forward_any<bf16, bf16>(a, stream);
}

cudaError_t gelu_bias_backward(const GeluBiasBackwardArgs& a, cudaStream_t stream) {
  if (a.width == 0) return cudaSuccess;
  if (too_large(a.num_rows, a.width, a.dropout)) return cudaErrorInvalidValue;
  using bf16 = __nv_bfloat16;
  const bool bias_fp32 = a.bias_element == ElementType::kFloat32;
  if (a.element == ElementType::kFloat32) {
    return bias_fp32 ? backward_any<float, float>(a, stream) : backward_any<float, bf16>(a, stream);
  }
  return bias_fp32 ? backward_any<bf16, float>(a, stream) : backward_any<bf16, bf16>(a, stream);
}

}  // namespace longship::kernels
