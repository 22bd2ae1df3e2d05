#pragma once
// A team: the threads of a block (all threadIdx.x at one threadIdx.y) that work on one row at a
// time, eight adjacent columns each. Teams of a block run freely of one another.
#include "kernels/common/reduce.cuh"
#include "kernels/common/row_plan.h"
#include "kernels/common/vec.cuh"

namespace longship::kernels {

/// The rows that this thread's team takes: first, first + step, ..., `count` of them; the first
/// team of the block takes `missing` more.
struct TeamRows {
  int64_t group, first, step;
  int count, missing;
};

__device__ inline TeamRows team_rows(const RowPlan& plan) {
  TeamRows rows;
  const uint32_t group = blockIdx.x / plan.blocks_per_group;
  const uint32_t block = blockIdx.x - group * plan.blocks_per_group;
  const int64_t first = static_cast<int64_t>(block) * plan.teams + threadIdx.y;
  rows.group = group;
  rows.first = group * plan.rows_per_group + first;
  rows.step = static_cast<int64_t>(plan.blocks_per_group) * plan.teams;
  // Rows of a team fit in 32 bits (fits_teams); the number of steps is at most that.
  const auto count_from = [&](int64_t row) {
    const int64_t left = plan.rows_per_group - row;
    return left <= 0 ? 0 : 1 + static_cast<int>((left - 1) / rows.step);
  };
  rows.count = count_from(first);
  rows.missing = count_from(first - threadIdx.y) - rows.count;
  return rows;
}

/// True for threads that own columns; the last warp of a team may have others.
__device__ inline bool owns_columns(const RowPlan& plan) {
  return threadIdx.x < plan.row_vectors;
}

/// Number of this thread's vector in the matrix. 32 bits (fits_teams) keep address arithmetic
/// short.
__device__ inline uint32_t vector_at(const RowPlan& plan, uint32_t row) {
  return row * plan.row_vectors + threadIdx.x;
}

template <class T>
__device__ inline Vec<T, kColumnsPerThread> load_at(const void* base, uint32_t at) {
  return load_vec<T, kColumnsPerThread>(static_cast<const T*>(base) +
                                        static_cast<uint64_t>(at) * kColumnsPerThread);
}

/// Rounds to T.
template <class T>
__device__ inline Vec<T, kColumnsPerThread> store_at(void* base, uint32_t at,
                                                     const float (&values)[kColumnsPerThread]) {
  const Vec<T, kColumnsPerThread> v = pack<T, kColumnsPerThread>(values);
  store_vec(static_cast<T*>(base) + static_cast<uint64_t>(at) * kColumnsPerThread, v);
  return v;
}

/// Shared memory of one team for sums of N values. Two sets: a sum is read while the next one is
/// being written, so that one barrier a sum suffices.
template <int N>
struct alignas(16) TeamSlots {
  float values[2][N][kMaxRowThreads / 32];
};

/// Every thread of the block calls this once, before the first team_sum.
template <int N>
__device__ inline void clear_slots(TeamSlots<N> (&slots)[kMaxTeams]) {
  constexpr int kFloats = 2 * N * kMaxRowThreads / 32;
  float* values = &slots[threadIdx.y].values[0][0][0];
  for (int i = threadIdx.x; i < kFloats; i += blockDim.x) values[i] = 0.0f;
  __syncthreads();
}

/// Waits for the threads of the team. Barrier numbers are constants because a kernel that computes
/// them occupies all 16 of a block, and a multiprocessor has 64. A barrier counts warps: one that
/// has come apart, after a condition on lanes or columns, must be whole again before it arrives.
__device__ inline void team_barrier() {
  __syncwarp();
  asm volatile(
      "{\n"
      "  .reg .pred p0, p1, p2, p3;\n"
      "  setp.eq.u32 p0, %0, 0;\n"
      "  setp.eq.u32 p1, %0, 1;\n"
      "  setp.eq.u32 p2, %0, 2;\n"
      "  setp.eq.u32 p3, %0, 3;\n"
      "  @p0 bar.sync 1, %1;\n"
      "  @p1 bar.sync 2, %1;\n"
      "  @p2 bar.sync 3, %1;\n"
      "  @p3 bar.sync 4, %1;\n"
      "}" ::"r"(threadIdx.y),
      "r"(blockDim.x)
      : "memory");
}

__device__ inline float add_four(const float4& v) {
  return (v.x + v.y) + (v.z + v.w);
}

/// Sums of N values over the team, given to each of its threads, in a fixed order. All threads of
/// the team take part. `set` alternates between 0 and 1 from one use of the slots to the next.
template <int N>
__device__ inline void team_sum(float (&sums)[N], TeamSlots<N>& slots, int set) {
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = warp_sum(sums[n]);
  if (blockDim.x == 32) return;
  const int warp = threadIdx.x >> 5;
  if ((threadIdx.x & 31) == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) slots.values[set][n][warp] = sums[n];
  }
  team_barrier();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    // Slots of warps that the team does not have stay zero.
    const float4* v = reinterpret_cast<const float4*>(slots.values[set][n]);
    float sum = add_four(v[0]) + add_four(v[1]);
    if (blockDim.x > 256) sum += add_four(v[2]) + add_four(v[3]);
    sums[n] = sum;
  }
}

/// After a team's last row: the barriers of the rows that it has fewer than others. Threads of a
/// block then pass equally many barriers, by whose number compute-sanitizer's racecheck tells what
/// comes before what; with fewer it reports races between phases that a __syncthreads parts.
__device__ inline void pass_missing_barriers(const TeamRows& rows) {
  if (blockDim.x == 32) return;  // team_sum has none
  for (int i = 0; i < rows.missing; ++i) team_barrier();
}

/// Room for the column sums of every team but the first.
struct alignas(16) TeamColumns {
  float values[kMaxRowThreads * kColumnsPerThread];
};

/// Sums `column` over the teams, in order, and writes the block's row of `partial` [num_blocks,
/// width]. All threads of the block call it; `active`: the thread has columns.
__device__ inline void store_partial(float (&column)[kColumnsPerThread], TeamColumns& shared,
                                     float* partial, int64_t width, bool active) {
  const int row_floats = blockDim.x * kColumnsPerThread;
  const int offset = threadIdx.x * kColumnsPerThread;
  const auto as_vec = [&] { return pack<float, kColumnsPerThread>(column); };
  __syncwarp();  // the columns of a row's last warp may end inside it: see team_barrier
  if (blockDim.y > 1) {
    __syncthreads();
    if (threadIdx.y > 0)
      store_vec(shared.values + (threadIdx.y - 1) * row_floats + offset, as_vec());
    __syncthreads();
    for (int team = 1; threadIdx.y == 0 && team < static_cast<int>(blockDim.y); ++team) {
      const float* other = shared.values + (team - 1) * row_floats + offset;
#pragma unroll
      for (int i = 0; i < kColumnsPerThread; ++i) column[i] += other[i];
    }
  }
  if (threadIdx.y == 0 && active) store_vec(partial + blockIdx.x * width + offset, as_vec());
}

}  // namespace longship::kernels
