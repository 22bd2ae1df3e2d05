#pragma once
// Sums over rows in one launch, where rows are few: a block owns 32 columns (four runs of eight) of
// all rows, 64 of which it reads at a time, and joins the sums of its 64 lanes through shared
// memory. Many rows need more blocks than columns give: partial sums and column_sums.
#include <cstdint>

namespace longship::kernels::few_rows {

constexpr int kRun = 8;        // columns of a thread
constexpr int kRuns = 4;       // runs of a block
constexpr int kRowLanes = 64;  // rows that a block reads at a time
constexpr int kTile = kRun * kRuns;
constexpr int kThreads = kRuns * kRowLanes;  // threadIdx.x: run, threadIdx.y: row lane
// Of a kernel whose other way is a pass with partial sums and a second launch: measured on an H200
// with 1536 and 6144 columns, equal at some 300 rows.
constexpr int64_t kMostRows = 256;

constexpr int kParts = kThreads / kTile;  // of the lanes, each added up by one thread a column
constexpr int kPitch = kTile + 4;         // floats of a lane: stores of a warp meet in no bank

/// Blocks for `width` columns.
__host__ __device__ inline int num_tiles(int64_t width) {
  return static_cast<int>((width + kTile - 1) / kTile);
}

struct Shared {
  float lanes[kRowLanes][kPitch];
  float joined[kParts][kTile];
};

/// A column of the tile and its sum over the block's rows, where the thread has one.
struct Total {
  int column = -1;
  float sum = 0.0f;
};

/// `sum`: this thread's sums of its eight columns. Every thread of the block calls it, once. Added
/// up in a fixed order.
__device__ inline Total join(const float (&sum)[kRun], Shared& shared) {
  // Element i of run x stands at i * kRuns + x.
#pragma unroll
  for (int i = 0; i < kRun; ++i) shared.lanes[threadIdx.y][i * kRuns + threadIdx.x] = sum[i];
  __syncthreads();
  const int thread = threadIdx.y * kRuns + threadIdx.x;
  const int place = thread % kTile;
  const int part = thread / kTile;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kRowLanes / kParts; ++i) {
    total += shared.lanes[part * (kRowLanes / kParts) + i][place];
  }
  shared.joined[part][place] = total;
  __syncthreads();
  if (part > 0) return {};
#pragma unroll
  for (int i = 1; i < kParts; ++i) total += shared.joined[i][place];
  return {place % kRuns * kRun + place / kRuns, total};
}

}  // namespace longship::kernels::few_rows
