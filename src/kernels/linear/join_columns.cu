// Blocks of few_rows.cuh, each in one part; 10 KiB of shared memory. An element is read once and
// written once; what bounds it at few rows is latency: 64 rows are read at a time.
#include "kernels/linear/join_columns.h"

#include <cuda_bf16.h>

#include "kernels/common/few_rows.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"

namespace longship::kernels {
namespace {

using few_rows::kRun;
using few_rows::kTile;
using few_rows::num_tiles;

template <class T>
__global__ void __launch_bounds__(few_rows::kThreads)
    join_columns_kernel(const __grid_constant__ JoinColumnsArgs a, int64_t width) {
  await_previous_kernel();
  __shared__ few_rows::Shared shared;
  int part = 0, tile = static_cast<int>(blockIdx.x);
  int64_t before = 0;  // columns of earlier parts
  for (; tile >= num_tiles(a.parts[part].width); ++part) {
    tile -= num_tiles(a.parts[part].width);
    before += a.parts[part].width;
  }
  const JoinedPart source = a.parts[part];
  const int64_t column = static_cast<int64_t>(tile) * kTile + threadIdx.x * kRun;
  float sum[kRun] = {};
  if (column < source.width) {
    const T* in = static_cast<const T*>(source.data) + column;
    T* out = static_cast<T*>(a.values) + before + column;
#pragma unroll 4
    for (int64_t row = threadIdx.y; row < a.num_rows; row += few_rows::kRowLanes) {
      const Vec<T, kRun> v = load_vec<T, kRun>(in + row * source.row_stride);
      if (a.values != nullptr) store_vec(out + row * width, v);
      float values[kRun];
      unpack(v, values);
#pragma unroll
      for (int i = 0; i < kRun; ++i) sum[i] += values[i];
    }
  }
  if (a.sums == nullptr) return;
  const few_rows::Total total = few_rows::join(sum, shared);
  const int64_t target = static_cast<int64_t>(tile) * kTile + total.column;
  if (total.column >= 0 && target < source.width) {
    static_cast<T*>(a.sums)[before + target] = from_float<T>(total.sum);
  }
}

}  // namespace

cudaError_t join_columns(const JoinColumnsArgs& args, cudaStream_t stream) {
  int tiles = 0;
  int64_t width = 0;
  for (int p = 0; p < args.num_parts; ++p) {
    tiles += num_tiles(args.parts[p].width);
    width += args.parts[p].width;
  }
  if (tiles == 0) return cudaSuccess;
  const auto kernel = args.element == ElementType::kFloat32 ? join_columns_kernel<float>
                                                            : join_columns_kernel<__nv_bfloat16>;
  launch_kernel(kernel, static_cast<unsigned>(tiles), dim3(few_rows::kRuns, few_rows::kRowLanes), 0,
                stream, args, width);
  return cudaGetLastError();
}

}  // namespace longship::kernels
