// Forward: one thread per run of 8 (or 1) columns of a row.
// Backward, two kernels. embedding_rows_index_kernel finds for every place of the list how many
// smaller ids and how many earlier equal ids there are; that is its place in the list sorted by
// (id, place), so the occurrences of every id become neighbours. Ids are searched in tiles of 2048
// in shared memory (8 KiB). embedding_rows_sum_kernel: a block owns 32 runs of columns and 16
// places of the list; for every first occurrence among them its eight warps sum a consecutive piece
// of the occurrences each.
#include <limits>

#include "kernels/activation/pack.cuh"
#include "kernels/common/launch.cuh"
#include "kernels/embedding/embedding_rows.h"

namespace longship::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kScanners = 8;                   // threads that search for one place
constexpr int kPlaces = kThreads / kScanners;  // places of an index block
constexpr int kTile = 2048;                    // ids in shared memory
constexpr int kWarps = kThreads / 32;
constexpr int kGroup = 16;      // places of a sum block: few enough that the first occurrences of a
                                // list without repetitions are spread over many blocks
constexpr int kBatch = 8;       // rows that a warp loads before it adds the first
constexpr int kRunStride = 36;  // keeps the transposed sums free of bank conflicts
constexpr int32_t kIgnored = -1;

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    embedding_rows_forward_kernel(const T* __restrict__ weight, const int64_t* __restrict__ ids,
                                  T* __restrict__ y, int64_t num_packs, uint32_t per_row,
                                  int64_t vocab, float scale) {
  await_previous_kernel();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads;
  const int64_t flat = first + threadIdx.x;
  if (flat >= num_packs) return;
  const auto [row, column] = pack::RowWalk(first, per_row).at(threadIdx.x);
  const int64_t id = ids[row];
  float v[N] = {};
  if (id >= vocab) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = __int_as_float(0x7fc00000);
  } else if (id >= 0) {
    pack::load<N>(weight + (id * per_row + column) * N, v);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= scale;
  }
  pack::store<N>(y + flat * N, v);
}

struct Index {
  int32_t* order;  // [num_ids] places sorted by (id, place); ignored places leave unwritten holes
  int32_t* start;  // [num_ids] at a first occurrence its place in `order`, else kIgnored
  int32_t* count;  // [num_ids] occurrences of the id, at its first occurrence
};

__device__ __forceinline__ int32_t usable(int64_t id, int64_t vocab, int64_t pad_id) {
  return id < 0 || id >= vocab || id == pad_id ? kIgnored : static_cast<int32_t>(id);
}

__global__ void __launch_bounds__(kThreads)
    embedding_rows_index_kernel(const int64_t* __restrict__ ids, Index out,
                                uint8_t* __restrict__ row_flags, int32_t num_ids, int64_t vocab,
                                int64_t pad_id) {
  await_previous_kernel();
  __shared__ int4 tile[kTile / 4];
  int32_t* tile_ids = reinterpret_cast<int32_t*>(tile);
  const int scanner = threadIdx.x % kScanners;
  const int32_t place = blockIdx.x * kPlaces + threadIdx.x / kScanners;
  const int32_t mine = place < num_ids ? usable(ids[place], vocab, pad_id) : kIgnored;
  int32_t smaller = 0, earlier = 0, equal = 0;
  const auto visit = [&](int32_t other, int32_t where) {
    smaller += other < mine;
    equal += other == mine;
    earlier += other == mine && where < place;
  };
  for (int32_t base = 0; base < num_ids; base += kTile) {
    const int32_t filled = min(kTile, num_ids - base);
    const int32_t quads = (filled + 3) / 4;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < quads * 4; i += kThreads) {
      // What stands behind the list is larger than every id.
      tile_ids[i] = i < filled ? usable(ids[base + i], vocab, pad_id) : INT32_MAX;
    }
    __syncthreads();
    for (int32_t j = scanner; j < quads; j += kScanners) {
      const int4 four = tile[j];
      const int32_t where = base + 4 * j;
      visit(four.x, where);
      visit(four.y, where + 1);
      visit(four.z, where + 2);
      visit(four.w, where + 3);
    }
  }
#pragma unroll
  for (int offset = kScanners / 2; offset > 0; offset /= 2) {
    smaller += __shfl_xor_sync(0xffffffffu, smaller, offset);
    earlier += __shfl_xor_sync(0xffffffffu, earlier, offset);
    equal += __shfl_xor_sync(0xffffffffu, equal, offset);
  }
  if (scanner != 0 || place >= num_ids) return;
  const bool first = mine != kIgnored && earlier == 0;
  out.start[place] = first ? smaller : kIgnored;
  if (mine != kIgnored) out.order[smaller + earlier] = place;
  if (first) {
    out.count[place] = equal;
    row_flags[mine] = 1;
  }
}

/// sum += dy[order[begin, end)], in this order, with kBatch loads in flight: an id that occurs
/// hundreds of times would otherwise cost as many memory latencies.
template <class T, int N>
__device__ __forceinline__ void add_rows(const T* __restrict__ dy,
                                         const int32_t* __restrict__ order, int32_t begin,
                                         int32_t end, int64_t width, float (&sum)[N]) {
  for (; begin + kBatch <= end; begin += kBatch) {
    pack::Raw<T, N> raw[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) raw[k] = pack::fetch<N>(dy + order[begin + k] * width);
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      float v[N];
      pack::expand(raw[k], v);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += v[j];
    }
  }
  for (; begin < end; ++begin) {
    float v[N];
    pack::load<N>(dy + order[begin] * width, v);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += v[j];
  }
}

template <class T, class G, int N>
__global__ void __launch_bounds__(kThreads, 3)
    embedding_rows_sum_kernel(const T* __restrict__ dy, const int64_t* __restrict__ ids,
                              Index index, G* __restrict__ grad_rows, int32_t num_ids,
                              int64_t width, float scale) {
  await_previous_kernel();
  __shared__ float sums[kWarps][N * kRunStride];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t tile = static_cast<int64_t>(blockIdx.y) * (32 * N);
  const int64_t column = tile + lane * N;
  const int64_t out = tile + threadIdx.x;  // the column that this thread adds to grad_rows
  const int place_in_sums = (threadIdx.x % N) * kRunStride + threadIdx.x / N;
  const int32_t first = blockIdx.x * kGroup;
  const int32_t last = min(first + kGroup, num_ids);
  for (int32_t place = first; place < last; ++place) {
    const int32_t start = index.start[place];  // the same for the whole block
    if (start == kIgnored) continue;
    const int32_t count = index.count[place];
    const int32_t piece = (count + kWarps - 1) / kWarps;
    const int32_t begin = min(warp * piece, count);
    const int32_t end = min(begin + piece, count);
    float sum[N] = {};
    if (column < width) {
      add_rows<T, N>(dy + column, index.order + start, begin, end, width, sum);
    }
    __syncthreads();  // the sums of the previous id have been read
#pragma unroll
    for (int j = 0; j < N; ++j) sums[warp][j * kRunStride + lane] = sum[j];
    __syncthreads();
    if (threadIdx.x < 32 * N && out < width) {
      float total = sums[0][place_in_sums];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) total += sums[w][place_in_sums];
      G* grad = grad_rows + ids[place] * width + out;
      *grad = static_cast<G>(static_cast<float>(*grad) + scale * total);
    }
  }
}

template <class T, int N>
cudaError_t forward(const EmbeddingRowsArgs& a, cudaStream_t stream) {
  const int64_t per_row = a.width / N;
  const int64_t num_packs = a.num_ids * per_row;
  launch_kernel(embedding_rows_forward_kernel<T, N>,
                static_cast<unsigned>(pack::ceil_div(num_packs, kThreads)), kThreads, 0, stream,
                static_cast<const T*>(a.weight), a.ids, static_cast<T*>(a.y), num_packs,
                static_cast<uint32_t>(per_row), a.vocab, a.scale);
  return cudaGetLastError();
}

template <class T, class G, int N>
cudaError_t backward(const EmbeddingRowsBackwardArgs& a, cudaStream_t stream) {
  const Index index{a.workspace, a.workspace + a.num_ids, a.workspace + 2 * a.num_ids};
  const auto num_ids = static_cast<int32_t>(a.num_ids);
  launch_kernel(embedding_rows_index_kernel,
                static_cast<unsigned>(pack::ceil_div(a.num_ids, kPlaces)), kThreads, 0, stream,
                a.ids, index, a.row_flags, num_ids, a.vocab, a.pad_id);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  const dim3 grid(static_cast<unsigned>(pack::ceil_div(a.num_ids, kGroup)),
                  static_cast<unsigned>(pack::ceil_div(a.width, 32 * N)));
  launch_kernel(embedding_rows_sum_kernel<T, G, N>, grid, kThreads, 0, stream,
                static_cast<const T*>(a.dy), a.ids, index, static_cast<G*>(a.grad_rows), num_ids,
                a.width, a.scale);
  return cudaGetLastError();
}

template <class T, class G>
cudaError_t backward_any(const EmbeddingRowsBackwardArgs& a, cudaStream_t stream) {
  // grad_rows is read and written element by element: only dy asks for alignment.
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.dy);
  return wide ? backward<T, G, pack::kWide>(a, stream) : backward<T, G, 1>(a, stream);
}

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

}  // namespace

int64_t embedding_rows_workspace(int64_t num_ids) {
  return 3 * num_ids;
}

cudaError_t embedding_rows_forward(const EmbeddingRowsArgs& a, cudaStream_t stream) {
  if (a.num_ids == 0 || a.width == 0) return cudaSuccess;
  if (a.width > kMaxInt) return cudaErrorInvalidValue;
  const bool wide = a.width % pack::kWide == 0 && pack::aligned16(a.weight, a.y);
  if (a.element == ElementType::kFloat32) {
    return wide ? forward<float, pack::kWide>(a, stream) : forward<float, 1>(a, stream);
  }
  return wide ? forward<__nv_bfloat16, pack::kWide>(a, stream)
              : forward<__nv_bfloat16, 1>(a, stream);
}

cudaError_t embedding_rows_backward(const EmbeddingRowsBackwardArgs& a, cudaStream_t stream) {
  if (a.num_ids == 0 || a.width == 0) return cudaSuccess;
  if (a.num_ids > kMaxInt - kTile || a.vocab > kMaxInt) return cudaErrorInvalidValue;
  using bf16 = __nv_bfloat16;
  const bool grad_fp32 = a.grad_element == ElementType::kFloat32;
  if (a.element == ElementType::kFloat32) {
    return grad_fp32 ? backward_any<float, float>(a, stream) : backward_any<float, bf16>(a, stream);
  }
  return grad_fp32 ? backward_any<bf16, float>(a, stream) : backward_any<bf16, bf16>(a, stream);
}

}  // namespace longship::kernels
