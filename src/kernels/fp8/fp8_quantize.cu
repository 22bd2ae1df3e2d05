// Matrix [rows, cols] bf16 to FP8 as it is and transposed, with amax and column sums on the way.
// Tile 128 x 128, 256 threads, 16 KiB of shared memory (24 KiB with column sums), 4 blocks a
// multiprocessor. Bound by memory: 2 bytes read and 1 or 2 written an element; a block has its
// whole tile of 32 KiB in flight.
#include "kernels/common/launch.cuh"
#include "kernels/fp8/fp8_convert.cuh"

namespace longship::kernels {
namespace fp8 {
namespace {

template <class Format, bool kSums>
__global__ __launch_bounds__(kThreads,
                             4) void quantize_kernel(const __grid_constant__ Fp8QuantizeArgs args,
                                                     int num_partials) {
  await_previous_kernel();
  __shared__ uint4 stage[kStageWords / 4];
  __shared__ unsigned warp_bits[2][kWarps];
  __shared__ float4 sums[kSums ? kSumRows * kFp8Tile / 4 : 1];
  const Tile tile = tile_of(blockIdx.x, args.rows, args.cols);
  TileInput in;
  in.load(static_cast<const __nv_bfloat16*>(args.x), args.cols, tile);
  const float scale = find_scale(args.scale, num_partials, warp_bits[0]);
  if (blockIdx.x == 0 && threadIdx.x == 0) *args.scale.inv_scale = 1.0f / scale;
  convert_tile<Format, kSums>(in, scale, args.q, args.q_t, args.rows, args.cols, tile,
                              reinterpret_cast<uint32_t*>(stage), warp_bits[1],
                              reinterpret_cast<float*>(sums));
  if (args.scale.record != nullptr && threadIdx.x == 0) {
    record_max(args.scale.record, joined_bits<kWarps>(warp_bits[1]));
  }
  if (kSums) {
    float* out = args.sum_partials + (tile.row / kFp8Tile) * args.cols + tile.col;
    store_sums(reinterpret_cast<const float*>(sums), out, tile);
  }
}

constexpr int kSumColumns = 32;
constexpr int kSumLanes = 8;

/// Sums of the tiles' sums: 32 columns a block, 8 threads a column.
template <class T>
__global__ void join_sums_kernel(const float* partials, T* out, int num_rows, int64_t cols) {
  await_previous_kernel();
  __shared__ float shared[kSumLanes][kSumColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < cols) {
    for (int row = threadIdx.y; row < num_rows; row += kSumLanes) {
      sum += partials[row * cols + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= cols) return;
  for (int i = 1; i < kSumLanes; ++i) sum += shared[i][threadIdx.x];
  out[column] = static_cast<T>(sum);
}

cudaError_t join_sums(const Fp8QuantizeArgs& args, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((args.cols + kSumColumns - 1) / kSumColumns);
  const dim3 threads(kSumColumns, kSumLanes);
  const int rows = num_tiles(args.rows);
  if (args.sums_element == ElementType::kFloat32) {
    launch_kernel(join_sums_kernel<float>, blocks, threads, 0, stream, args.sum_partials,
                  static_cast<float*>(args.column_sums), rows, args.cols);
  } else {
    launch_kernel(join_sums_kernel<__nv_bfloat16>, blocks, threads, 0, stream, args.sum_partials,
                  static_cast<__nv_bfloat16*>(args.column_sums), rows, args.cols);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fp8

cudaError_t fp8_quantize(const Fp8QuantizeArgs& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return cudaSuccess;
  int num_partials = 0;
  cudaError_t status = fp8::find_amax(args.x, args.rows * args.cols, ElementType::kBFloat16,
                                      args.scale, &num_partials, stream);
  if (status != cudaSuccess) return status;
  const bool sums = args.column_sums != nullptr;
  const auto kernel =
      args.format == Fp8Format::kE4M3
          ? (sums ? fp8::quantize_kernel<fp8::E4M3, true> : fp8::quantize_kernel<fp8::E4M3, false>)
          : (sums ? fp8::quantize_kernel<fp8::E5M2, true> : fp8::quantize_kernel<fp8::E5M2, false>);
  const unsigned blocks =
      static_cast<unsigned>(fp8::num_tiles(args.rows)) * fp8::num_tiles(args.cols);
  launch_kernel(kernel, blocks, fp8::kThreads, 0, stream, args, num_partials);
  status = cudaGetLastError();
  if (status != cudaSuccess || !sums) return status;
  return fp8::join_sums(args, stream);
}

}  // namespace longship::kernels
