// All weights of a model to FP8, each scaled by its own amax: their descriptions travel as kernel
// arguments, 64 at a time, so that hundreds of small matrices cost a few launches. Tiles as in
// fp8_quantize.cu. Bound by memory: 4 bytes read and 2 written an element.
#include "kernels/common/launch.cuh"
#include "kernels/fp8/fp8_convert.cuh"

namespace longship::kernels {
namespace fp8 {
namespace {

constexpr int kBatch = 64;

struct Entry {
  const __nv_bfloat16* w;
  uint8_t* q;
  uint8_t* q_t;
  float* scale;
  int rows, cols;
  unsigned first_tile;
};

/// Stays below the 4 KiB of kernel arguments that every driver takes.
struct Batch {
  Entry entries[kBatch];
  int count;
  float target;
};
static_assert(sizeof(Batch) < 4000);

/// Index of the entry that owns a tile: the last whose first tile is not behind it.
__device__ int owner_of(const Batch& batch, unsigned tile) {
  int low = 0;
  int high = batch.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (batch.entries[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void clear_kernel(const __grid_constant__ Batch batch) {
  await_previous_kernel();
  if (static_cast<int>(threadIdx.x) < batch.count) batch.entries[threadIdx.x].scale[1] = 0.0f;
}

__global__ __launch_bounds__(kThreads, 4) void amax_kernel(const __grid_constant__ Batch batch) {
  await_previous_kernel();
  __shared__ unsigned warp_bits[kWarps];
  const Entry& entry = batch.entries[owner_of(batch, blockIdx.x)];
  const Tile tile = tile_of(blockIdx.x - entry.first_tile, entry.rows, entry.cols);
  TileInput in;
  in.load(entry.w, entry.cols, tile);
  const unsigned bits = block_max<kThreads>(in.amax_bits(), warp_bits);
  if (threadIdx.x == 0) record_max(entry.scale + 1, bits);
}

__global__ __launch_bounds__(kThreads, 4) void convert_kernel(const __grid_constant__ Batch batch) {
  await_previous_kernel();
  __shared__ uint4 stage[kStageWords / 4];
  __shared__ unsigned warp_bits[kWarps];
  const Entry& entry = batch.entries[owner_of(batch, blockIdx.x)];
  const Tile tile = tile_of(blockIdx.x - entry.first_tile, entry.rows, entry.cols);
  TileInput in;
  in.load(entry.w, entry.cols, tile);
  const float scale = scale_of(entry.scale[1], batch.target);
  if (blockIdx.x == entry.first_tile && threadIdx.x == 0) entry.scale[0] = 1.0f / scale;
  convert_tile<E4M3, false>(in, scale, entry.q, entry.q_t, entry.rows, entry.cols, tile,
                            reinterpret_cast<uint32_t*>(stage), warp_bits, nullptr);
}

}  // namespace
}  // namespace fp8

cudaError_t fp8_quantize_weights(const Fp8WeightArgs* weights, int64_t num_weights, float target,
                                 cudaStream_t stream) {
  for (int64_t first = 0; first < num_weights; first += fp8::kBatch) {
    fp8::Batch batch{};
    batch.target = target;
    unsigned num_tiles = 0;
    for (int64_t i = first; i < num_weights && i < first + fp8::kBatch; ++i) {
      const Fp8WeightArgs& weight = weights[i];
      if (weight.rows == 0 || weight.cols == 0) continue;
      batch.entries[batch.count++] = {static_cast<const __nv_bfloat16*>(weight.w),
                                      weight.q,
                                      weight.q_t,
                                      weight.scale,
                                      static_cast<int>(weight.rows),
                                      static_cast<int>(weight.cols),
                                      num_tiles};
      num_tiles += static_cast<unsigned>(fp8::num_tiles(weight.rows)) * fp8::num_tiles(weight.cols);
    }
    if (batch.count == 0) continue;
    launch_kernel(fp8::clear_kernel, 1, fp8::kBatch, 0, stream, batch);
    launch_kernel(fp8::amax_kernel, num_tiles, fp8::kThreads, 0, stream, batch);
    launch_kernel(fp8::convert_kernel, num_tiles, fp8::kThreads, 0, stream, batch);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace longship::kernels
