// One block per row for y and dx; one block per (group, 32 columns) for the sums over rows.
// Bound by memory traffic. Shared memory: 128 bytes (rows), 8 KiB (columns).
#include <cuda_bf16.h>

#include "kernels/common/reduce.cuh"
#include "kernels/rms_norm/rms_norm.h"

namespace longship::kernels {
namespace {

constexpr int kRowThreads = 256;
constexpr int kColumnTile = 32;
constexpr int kRowLanes = 32;

__device__ inline float to_float(float v) {
  return v;
}
__device__ inline float to_float(__nv_bfloat16 v) {
  return __bfloat162float(v);
}
template <class T>
__device__ inline T from_float(float v);
template <>
__device__ inline float from_float<float>(float v) {
  return v;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
  return __float2bfloat16(v);
}

template <class T>
__global__ void forward_kernel(const T* x, const float* scale, const float* shift, T* y,
                               float* rstd, int64_t width, int64_t rows_per_group, float eps) {
  __shared__ float shared[32];
  const int64_t row = blockIdx.x;
  const int64_t group = row / rows_per_group;
  const T* x_row = x + row * width;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = to_float(x_row[i]);
    sum += v * v;
  }
  const float r = rsqrtf(block_sum(sum, shared) / static_cast<float>(width) + eps);
  if (threadIdx.x == 0) rstd[row] = r;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    float v = to_float(x_row[i]) * r * (1.0f + scale[group * width + i]);
    if (shift != nullptr) v += shift[group * width + i];
    y[row * width + i] = from_float<T>(v);
  }
}

template <class T>
__global__ void dx_kernel(const T* dy, const T* x, const float* scale, const float* rstd, T* dx,
                          int64_t width, int64_t rows_per_group) {
  __shared__ float shared[32];
  const int64_t row = blockIdx.x;
  const float* scale_row = scale + (row / rows_per_group) * width;
  const float r = rstd[row];
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float d = to_float(dy[row * width + i]) * (1.0f + scale_row[i]);
    sum += d * to_float(x[row * width + i]) * r;
  }
  const float mean = block_sum(sum, shared) / static_cast<float>(width);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float d = to_float(dy[row * width + i]) * (1.0f + scale_row[i]);
    const float x_hat = to_float(x[row * width + i]) * r;
    dx[row * width + i] = from_float<T>(r * (d - x_hat * mean));
  }
}

template <class T>
__global__ void column_sums_kernel(const T* dy, const T* x, const float* rstd, float* dscale,
                                   float* dshift, int64_t width, int64_t rows_per_group) {
  __shared__ float scale_part[kRowLanes][kColumnTile + 1];
  __shared__ float shift_part[kRowLanes][kColumnTile + 1];
  const int64_t column = blockIdx.x * kColumnTile + threadIdx.x;
  const int64_t group = blockIdx.y;
  float scale_sum = 0.0f;
  float shift_sum = 0.0f;
  if (column < width) {
    for (int64_t i = threadIdx.y; i < rows_per_group; i += kRowLanes) {
      const int64_t row = group * rows_per_group + i;
      const float d = to_float(dy[row * width + column]);
      scale_sum += d * to_float(x[row * width + column]) * rstd[row];
      shift_sum += d;
    }
  }
  scale_part[threadIdx.y][threadIdx.x] = scale_sum;
  shift_part[threadIdx.y][threadIdx.x] = shift_sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < width) {
    for (int i = 1; i < kRowLanes; ++i) {
      scale_sum += scale_part[i][threadIdx.x];
      shift_sum += shift_part[i][threadIdx.x];
    }
    dscale[group * width + column] = scale_sum;
    if (dshift != nullptr) dshift[group * width + column] = shift_sum;
  }
}

template <class T>
cudaError_t forward(const RmsNormArgs& a, cudaStream_t stream) {
  forward_kernel<T><<<static_cast<unsigned>(a.num_rows), kRowThreads, 0, stream>>>(
      static_cast<const T*>(a.x), a.scale, a.shift, static_cast<T*>(a.y), a.rstd, a.width,
      a.num_rows / a.num_groups, a.eps);
  return cudaGetLastError();
}

template <class T>
cudaError_t backward(const RmsNormBackwardArgs& a, cudaStream_t stream) {
  const int64_t rows_per_group = a.num_rows / a.num_groups;
  const T* dy = static_cast<const T*>(a.dy);
  const T* x = static_cast<const T*>(a.x);
  dx_kernel<T><<<static_cast<unsigned>(a.num_rows), kRowThreads, 0, stream>>>(
      dy, x, a.scale, a.rstd, static_cast<T*>(a.dx), a.width, rows_per_group);
  const dim3 grid(static_cast<unsigned>((a.width + kColumnTile - 1) / kColumnTile),
                  static_cast<unsigned>(a.num_groups));
  column_sums_kernel<T><<<grid, dim3(kColumnTile, kRowLanes), 0, stream>>>(
      dy, x, a.rstd, a.dscale, a.dshift, a.width, rows_per_group);
  return cudaGetLastError();
}

}  // namespace

cudaError_t rms_norm_forward(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  return args.element == ElementType::kFloat32 ? forward<float>(args, stream)
                                               : forward<__nv_bfloat16>(args, stream);
}

cudaError_t rms_norm_backward(const RmsNormBackwardArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0 || args.width == 0) return cudaSuccess;
  return args.element == ElementType::kFloat32 ? backward<float>(args, stream)
                                               : backward<__nv_bfloat16>(args, stream);
}

}  // namespace longship::kernels
