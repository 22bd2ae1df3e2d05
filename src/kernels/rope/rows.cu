// zero_tail: a fixed grid walks over the bytes of the tail, which only the device knows.
// gather_rows: one thread per unit of 16 bytes (or the largest power of two that divides the rows).
#include <algorithm>
#include <limits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/rope/rows.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 2 * 132;
constexpr int kUnits = 2;  // units per thread of gather_rows

__global__ void __launch_bounds__(kThreads)
    zero_tail_kernel(char* x, const int32_t* rows_valid, int64_t num_rows, int64_t row_bytes) {
  await_previous_kernel();
  const int64_t valid = min(max(static_cast<int64_t>(*rows_valid), int64_t{0}), num_rows);
  char* begin = x + valid * row_bytes;
  char* end = x + num_rows * row_bytes;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  // At most 15 bytes stand before the first aligned unit of 16, and 15 after the last.
  const int64_t head = min(static_cast<int64_t>(-reinterpret_cast<uintptr_t>(begin) & 15),
                           static_cast<int64_t>(end - begin));
  uint4* wide = reinterpret_cast<uint4*>(begin + head);
  const int64_t num_wide = (end - begin - head) / 16;
  for (int64_t i = thread; i < num_wide; i += step) wide[i] = make_uint4(0, 0, 0, 0);
  char* rest = begin + head + num_wide * 16;
  if (thread < head) begin[thread] = 0;
  if (thread < end - rest) rest[thread] = 0;
}

template <class Unit>
__global__ void __launch_bounds__(kThreads)
    permute_rows_kernel(const Unit* __restrict__ x, const int64_t* __restrict__ index,
                        Unit* __restrict__ y, int64_t num_units, uint32_t per_row) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kUnits);
  const pack::RowWalk walk(first, per_row);
  Unit units[kUnits] = {};
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    const uint32_t offset = k * kThreads + threadIdx.x;
    if (first + offset >= num_units) break;
    const auto [row, column] = walk.at(offset);
    const int64_t source = index[row];
    if (source >= 0) units[k] = x[source * per_row + column];
  }
#pragma unroll
  for (int k = 0; k < kUnits; ++k) {
    const int64_t flat = first + k * kThreads + threadIdx.x;
    if (flat < num_units) y[flat] = units[k];
  }
}

template <class Unit>
cudaError_t gather(const GatherRowsArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.row_bytes / static_cast<int64_t>(sizeof(Unit));
  const int64_t num_units = a.num_out * per_row;
  const auto blocks = static_cast<unsigned>(pack::ceil_div(num_units, kThreads * kUnits));
  launch_kernel(permute_rows_kernel<Unit>, blocks, kThreads, 0, stream,
                static_cast<const Unit*>(a.x), a.index, static_cast<Unit*>(a.y), num_units,
                static_cast<uint32_t>(per_row));
  return cudaGetLastError();
}

}  // namespace

cudaError_t zero_tail(const ZeroTailArgs& a, cudaStream_t stream) {
  const int64_t bytes = a.num_rows * a.row_bytes;
  if (bytes == 0) return cudaSuccess;
  const int64_t blocks = std::min(kMaxBlocks, pack::ceil_div(bytes, 16 * kThreads));
  launch_kernel(zero_tail_kernel, static_cast<unsigned>(blocks), kThreads, 0, stream,
                static_cast<char*>(a.x), a.rows_valid, a.num_rows, a.row_bytes);
  return cudaGetLastError();
}

cudaError_t gather_rows(const GatherRowsArgs& a, cudaStream_t stream) {
  if (a.num_out == 0 || a.row_bytes == 0) return cudaSuccess;
  if (a.row_bytes > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const uint64_t bits = static_cast<uint64_t>(a.row_bytes) | reinterpret_cast<uintptr_t>(a.x) |
                        reinterpret_cast<uintptr_t>(a.y);
  if (bits % 16 == 0) return gather<uint4>(a, stream);
  if (bits % 8 == 0) return gather<uint64_t>(a, stream);
  if (bits % 4 == 0) return gather<uint32_t>(a, stream);
  if (bits % 2 == 0) return gather<uint16_t>(a, stream);
  return gather<uint8_t>(a, stream);
}

}  // namespace longship::kernels
