// Pack: a warp looks at 32 flags that stand far apart (rows in use are often neighbours, and every
// warp shall get few of them), then reads the flagged rows one after the other, takes the next
// place of the list with one atomic addition and copies the row.
// Sum: every list's places are written into a table by row (slots); then a warp per place of a list
// sums this row over all lists, unless an earlier list has it: its warp does. The order inside the
// lists, which is the one thing that differs from run to run, is not seen in the sums.
#include <limits>
#include <type_traits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/exchange/row_lists.h"
#include "kernels/exchange/scaled.cuh"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPreset = 4;  // numbers that a thread of preset_kernel writes
constexpr int kCopied = 4;  // runs of a row that a thread has in flight
constexpr int kSummed = 4;
constexpr unsigned kAllLanes = 0xffffffffu;

/// data[0, count) = -1, but the last one = last.
__global__ void __launch_bounds__(kThreads)
    preset_kernel(int32_t* data, int64_t count, int32_t last) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPreset + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kPreset; ++k) {
    const int64_t i = first + k * kThreads;
    if (i < count) data[i] = i == count - 1 ? last : -1;
  }
}

/// Not 0 where any element is not; the sign alone is nothing.
template <class T, int N>
__device__ __forceinline__ uint32_t something(const pack::Raw<T, N>& raw) {
  if constexpr (N == 1 && std::is_same_v<T, float>) {
    return __float_as_uint(raw.value) & 0x7fffffffu;
  } else if constexpr (N == 1) {
    return __bfloat16_as_ushort(raw.value) & 0x7fffu;
  } else {
    constexpr uint32_t kMask = std::is_same_v<T, float> ? 0x7fffffffu : 0x7fff7fffu;
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < pack::Raw<T, N>::kWords; ++i) {
      bits |= raw.words[i].x | raw.words[i].y | raw.words[i].z | raw.words[i].w;
    }
    return bits & kMask;
  }
}

template <class T, int N>
__device__ __forceinline__ void put(T* p, const pack::Raw<T, N>& raw) {
  if constexpr (N == 1) {
    p[0] = raw.value;
  } else {
#pragma unroll
    for (int i = 0; i < pack::Raw<T, N>::kWords; ++i) reinterpret_cast<uint4*>(p)[i] = raw.words[i];
  }
}

/// The same answer in all lanes of the warp, all of which call it.
template <class T, int N>
__device__ __forceinline__ bool holds_something(const T* row, int64_t runs, int lane) {
  uint32_t bits = 0;
#pragma unroll 4
  for (int64_t run = lane; run < runs; run += 32) {
    bits |= something<T, N>(pack::fetch<N>(row + run * N));
  }
  return __any_sync(kAllLanes, bits != 0);
}

/// Every lane reads and clears only what it copies itself.
template <class T, int N>
__device__ __forceinline__ void move_row(T* from, T* to, int64_t runs, bool clear, int lane) {
  for (int64_t first = lane; first < runs; first += 32 * kCopied) {
    pack::Raw<T, N> raw[kCopied];
#pragma unroll
    for (int k = 0; k < kCopied; ++k) {
      const int64_t run = first + k * 32;
      if (run < runs) raw[k] = pack::fetch<N>(from + run * N);
    }
#pragma unroll
    for (int k = 0; k < kCopied; ++k) {
      const int64_t run = first + k * 32;
      if (run >= runs) break;
      if (to != nullptr) put<T, N>(to + run * N, raw[k]);
      if (clear) put<T, N>(from + run * N, pack::Raw<T, N>{});
    }
  }
}

/// rows[0, places) = -1 and rows[places] = 0 before. 32 rows for every warp of the grid.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pack_rows_kernel(T* table, const uint8_t* flags, int32_t* rows, T* values, int64_t table_rows,
                     int64_t width, int32_t places, bool clear) {
  await_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarps;
  const int64_t mine = warp + lane * num_warps;
  const bool flagged = mine < table_rows && flags[mine] != 0;
  for (unsigned todo = __ballot_sync(kAllLanes, flagged); todo != 0; todo &= todo - 1) {
    const int64_t row = warp + (__ffs(todo) - 1) * num_warps;
    T* from = table + row * width;
    if (!holds_something<T, N>(from, width / N, lane)) continue;
    int32_t place = 0;
    if (lane == 0) {
      place = atomicAdd(rows + places, 1);
      if (place < places) rows[place] = static_cast<int32_t>(row);
    }
    place = __shfl_sync(kAllLanes, place, 0);
    T* to = place < places ? values + place * width : nullptr;
    if (to != nullptr || clear) move_row<T, N>(from, to, width / N, clear, lane);
  }
}

template <class T>
struct Lists {
  const int32_t* rows;  // [lists, places + 1]
  const T* values;      // [lists, places, width]
  int32_t* slots;       // [lists, table_rows]
  int64_t lists, places, width, table_rows;

  __device__ __forceinline__ int32_t row(int64_t list, int64_t place) const {
    return rows[list * (places + 1) + place];
  }
  __device__ __forceinline__ bool in_table(int32_t row) const {
    return row >= 0 && row < table_rows;
  }
};

/// slots = -1 before.
template <class T>
__global__ void __launch_bounds__(kThreads) slots_kernel(Lists<T> of) {
  await_previous_kernel();
  const int64_t flat = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (flat >= of.lists * of.places) return;
  const int64_t list = flat / of.places;
  const int64_t place = flat - list * of.places;
  const int32_t row = of.row(list, place);
  if (of.in_table(row)) of.slots[list * of.table_rows + row] = static_cast<int32_t>(place);
}

/// Adds the runs first, first + 32, ... of `from` that are below `runs`.
template <class T, int N, bool kDivide>
__device__ __forceinline__ void add_runs(const T* from, int64_t first, int64_t runs, float scale,
                                         float (&sum)[kSummed][N]) {
  pack::Raw<T, N> raw[kSummed];
#pragma unroll
  for (int k = 0; k < kSummed; ++k) {
    const int64_t run = first + k * 32;
    if (run < runs) raw[k] = pack::fetch<N>(from + run * N);
  }
#pragma unroll
  for (int k = 0; k < kSummed; ++k) {
    if (first + k * 32 >= runs) break;
    float v[N];
    pack::expand(raw[k], v);
    // Not fused into one rounding: the same bits whatever the divisor's path.
#pragma unroll
    for (int i = 0; i < N; ++i) sum[k][i] = __fadd_rn(sum[k][i], scaled<kDivide>(v[i], scale));
  }
}

template <class T, class Out, int N, bool kDivide>
__global__ void __launch_bounds__(kThreads)
    sum_row_lists_kernel(Lists<T> of, Out* out, int64_t begin, int64_t end, uint8_t* flags,
                         float scale) {
  await_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t flat = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (flat >= of.lists * of.places) return;  // here and below: a warp as a whole
  const int64_t own = flat / of.places;
  const int32_t row = of.row(own, flat - own * of.places);
  if (!of.in_table(row)) return;
  bool earlier = false, incomplete = false;
  for (int64_t list = lane; list < of.lists; list += 32) {
    earlier = earlier || (list < own && of.slots[list * of.table_rows + row] >= 0);
    incomplete = incomplete || of.row(list, of.places) > of.places;
  }
  if (__any_sync(kAllLanes, earlier)) return;
  if (__any_sync(kAllLanes, incomplete)) scale = __int_as_float(0x7fc00000);  // all sums are NaN
  if (flags != nullptr && lane == 0) flags[row] = 1;

  // The part of the row that `out` has, and its first column.
  const int64_t row_begin = row * of.width;
  const int64_t part_begin = max(row_begin, begin);
  const int64_t runs = (min(row_begin + of.width, end) - part_begin) / N;
  const int64_t column = part_begin - row_begin;
  for (int64_t first = lane; first < runs; first += 32 * kSummed) {
    float sum[kSummed][N];
#pragma unroll
    for (int k = 0; k < kSummed; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) sum[k][i] = -0.0f;  // -0 + x is x, also for a zero of either sign
    }
    for (int64_t list = own; list < of.lists; ++list) {
      const int32_t slot = of.slots[list * of.table_rows + row];
      if (slot < 0) continue;
      const T* from = of.values + (list * of.places + slot) * of.width + column;
      add_runs<T, N, kDivide>(from, first, runs, scale, sum);
    }
#pragma unroll
    for (int k = 0; k < kSummed; ++k) {
      const int64_t run = first + k * 32;
      if (run < runs) pack::store<N>(out + (part_begin - begin) + run * N, sum[k]);
    }
  }
}

/// A warp for each place of a list.
template <class Out>
__global__ void __launch_bounds__(kThreads)
    clear_row_lists_kernel(Out* out, const int32_t* rows, int64_t lists, int64_t places,
                           int64_t width, int64_t table_rows, int64_t begin, int64_t end) {
  await_previous_kernel();
  const int lane = threadIdx.x % 32;
  const int64_t flat = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (flat >= lists * places) return;
  const int64_t list = flat / places;
  const int64_t row = rows[flat + list];  // a list has places + 1 numbers
  if (row < 0 || row >= table_rows) return;
  const int64_t last = min((row + 1) * width, end);
  for (int64_t i = max(row * width, begin) + lane; i < last; i += 32) {
    out[i - begin] = static_cast<Out>(0.0f);
  }
}

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

bool fits(int64_t extent) {
  return extent >= 1 && extent <= kMaxInt;
}

cudaError_t preset(int32_t* data, int64_t count, int32_t last, cudaStream_t stream) {
  const int64_t blocks = pack::ceil_div(count, kThreads * kPreset);
  if (!fits(blocks)) return cudaErrorInvalidValue;
  launch_kernel(preset_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream, data, count,
                last);
  return cudaGetLastError();
}

template <class Out>
cudaError_t clear_of(const ClearRowListsArgs& args, cudaStream_t stream) {
  launch_kernel(clear_row_lists_kernel<Out>,
                static_cast<unsigned>(pack::ceil_div(args.lists * args.places, kWarps)), kThreads,
                0, stream, static_cast<Out*>(args.out), args.rows, args.lists, args.places,
                args.width, args.table_rows, args.begin, args.begin + args.count);
  return cudaGetLastError();
}

template <class T, int N>
cudaError_t pack_of(const PackRowsArgs& args, cudaStream_t stream) {
  const cudaError_t status = preset(args.rows, args.places + 1, 0, stream);
  if (status != cudaSuccess) return status;
  launch_kernel(pack_rows_kernel<T, N>,
                static_cast<unsigned>(pack::ceil_div(args.table_rows, 32 * kWarps)), kThreads, 0,
                stream, static_cast<T*>(args.table), args.flags, args.rows,
                static_cast<T*>(args.values), args.table_rows, args.width,
                static_cast<int32_t>(args.places), args.clear);
  return cudaGetLastError();
}

template <class T, class Out, int N, bool kDivide>
void launch_sum(const SumRowListsArgs& args, const Lists<T>& of, float scale, cudaStream_t stream) {
  launch_kernel(sum_row_lists_kernel<T, Out, N, kDivide>,
                static_cast<unsigned>(pack::ceil_div(of.lists * of.places, kWarps)), kThreads, 0,
                stream, of, static_cast<Out*>(args.out), args.begin, args.begin + args.count,
                args.flags, scale);
}

template <class T, class Out>
cudaError_t sum_of(const SumRowListsArgs& args, cudaStream_t stream) {
  const Lists<T> of{args.rows,      static_cast<const T*>(args.values),
                    args.slots,     args.lists,
                    args.places,    args.width,
                    args.table_rows};
  cudaError_t status = preset(args.slots, args.lists * args.table_rows, -1, stream);
  if (status != cudaSuccess) return status;
  launch_kernel(slots_kernel<T>,
                static_cast<unsigned>(pack::ceil_div(args.lists * args.places, kThreads)), kThreads,
                0, stream, of);
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const bool wide = args.width % pack::kWide == 0 && args.begin % pack::kWide == 0 &&
                    args.count % pack::kWide == 0 && pack::aligned16(args.out, args.values);
  const float reciprocal = 1 / args.divisor;
  if (reciprocal_is_exact(args.divisor)) {
    wide ? launch_sum<T, Out, pack::kWide, false>(args, of, reciprocal, stream)
         : launch_sum<T, Out, 1, false>(args, of, reciprocal, stream);
  } else {
    wide ? launch_sum<T, Out, pack::kWide, true>(args, of, args.divisor, stream)
         : launch_sum<T, Out, 1, true>(args, of, args.divisor, stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t pack_rows(const PackRowsArgs& args, cudaStream_t stream) {
  if (!fits(args.table_rows) || !fits(args.width) || !fits(args.places)) {
    return cudaErrorInvalidValue;
  }
  const bool wide = args.width % pack::kWide == 0 && pack::aligned16(args.table, args.values);
  if (args.type == ElementType::kFloat32) {
    return wide ? pack_of<float, pack::kWide>(args, stream) : pack_of<float, 1>(args, stream);
  }
  return wide ? pack_of<__nv_bfloat16, pack::kWide>(args, stream)
              : pack_of<__nv_bfloat16, 1>(args, stream);
}

cudaError_t clear_row_lists(const ClearRowListsArgs& args, cudaStream_t stream) {
  if (!fits(args.lists) || !fits(args.places) || !fits(args.width) || !fits(args.table_rows) ||
      !fits(pack::ceil_div(args.lists * args.places, kWarps))) {
    return cudaErrorInvalidValue;
  }
  return args.type == ElementType::kFloat32 ? clear_of<float>(args, stream)
                                            : clear_of<__nv_bfloat16>(args, stream);
}

cudaError_t sum_row_lists(const SumRowListsArgs& args, cudaStream_t stream) {
  if (!fits(args.lists) || !fits(args.places) || !fits(args.width) || !fits(args.table_rows) ||
      !fits(pack::ceil_div(args.lists * args.places, kWarps)) || !(args.divisor > 0)) {
    return cudaErrorInvalidValue;
  }
  using bf16 = __nv_bfloat16;
  const bool out_fp32 = args.out_type == ElementType::kFloat32;
  if (args.type == ElementType::kFloat32) {
    return out_fp32 ? sum_of<float, float>(args, stream) : sum_of<float, bf16>(args, stream);
  }
  return out_fp32 ? sum_of<bf16, float>(args, stream) : sum_of<bf16, bf16>(args, stream);
}

}  // namespace longship::kernels
