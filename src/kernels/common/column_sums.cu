// A block adds the partials of one group in 32 columns (many partials, shared by up to 32 rows of
// threads) or 128 columns (few). Bound by L2: the partials were written just before. Shared memory:
// 4.2 KiB.
#include "kernels/common/column_sums.h"

#include <algorithm>

#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"

namespace longship::kernels {
namespace {

constexpr int kTileColumns = 32;
constexpr int kMaxTileRows = 32;

struct Sums {
  ColumnSum sums[kMaxColumnSums];
};

__global__ void __launch_bounds__(1024)
    column_sums_kernel(const __grid_constant__ Sums all, int64_t width) {
  await_previous_kernel();
  __shared__ float shared[kMaxTileRows][kTileColumns + 1];
  const ColumnSum& s = all.sums[blockIdx.z];
  if (s.out.data == nullptr) return;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t rows = s.num_partials / s.out.num_groups;
  for (int64_t group = blockIdx.y; group < s.out.num_groups; group += gridDim.y) {
    float sum = 0.0f;
    if (column < width) {
      const float* source = s.partial + group * rows * width + column;
#pragma unroll 4
      for (int64_t row = threadIdx.y; row < rows; row += blockDim.y) sum += source[row * width];
    }
    if (blockDim.y > 1) {
      __syncthreads();
      shared[threadIdx.y][threadIdx.x] = sum;
      __syncthreads();
      for (int i = 1; threadIdx.y == 0 && i < static_cast<int>(blockDim.y); ++i)
        sum += shared[i][threadIdx.x];
    }
    if (threadIdx.y == 0 && column < width) {
      const int64_t i = group * (s.out.row_stride > 0 ? s.out.row_stride : width) + column;
      if (s.out.element == ElementType::kFloat32) {
        static_cast<float*>(s.out.data)[i] = sum;
      } else {
        static_cast<__nv_bfloat16*>(s.out.data)[i] = from_float<__nv_bfloat16>(sum);
      }
    }
  }
}

}  // namespace

cudaError_t column_sums(const ColumnSum* sums, int count, int64_t width, cudaStream_t stream) {
  Sums all;
  int64_t max_groups = 0;
  int64_t max_rows = 0;
  for (int i = 0; i < count; ++i) {
    all.sums[i] = sums[i];
    if (sums[i].out.data == nullptr) continue;
    max_groups = std::max(max_groups, sums[i].out.num_groups);
    max_rows = std::max(max_rows, sums[i].num_partials / sums[i].out.num_groups);
  }
  if (max_groups == 0 || width == 0) return cudaSuccess;
  dim3 block(kTileColumns, kMaxTileRows);
  if (max_rows <= 8) block = dim3(4 * kTileColumns, 1);
  const dim3 grid(static_cast<unsigned>((width + block.x - 1) / block.x),
                  static_cast<unsigned>(std::min<int64_t>(max_groups, 65535)),
                  static_cast<unsigned>(count));
  launch_kernel(column_sums_kernel, grid, block, 0, stream, all, width);
  return cudaGetLastError();
}

}  // namespace longship::kernels
