#pragma once
// How the rows of a matrix are shared by the blocks of a row-wise kernel. A function of the shape
// only, so that sums have the same order in every run.

#include <algorithm>
#include <cstdint>

namespace longship::kernels {

/// Multiprocessors of an H200. A constant: the grid, and with it the order of sums, does not depend
/// on the device found.
constexpr int64_t kNumSms = 132;
/// Elements of a row that one thread owns.
constexpr int kColumnsPerThread = 8;
constexpr int kMaxRowThreads = 512;
/// Widest row that one team holds in registers.
constexpr int64_t kMaxTeamWidth = kColumnsPerThread * kMaxRowThreads;
/// Every team has a named barrier of its own (team_barrier).
constexpr int kMaxTeams = 4;

/// A block has `teams` teams of `threads` threads (block shape: threads x teams) and works inside
/// one group. Team t of the group's block b takes rows b * teams + t, then steps of
/// blocks_per_group
/// * teams. Every block has at least one row.
struct RowPlan {
  int threads = 32;  // a multiple of 32
  int teams = 1;
  int64_t rows_per_group = 0;
  uint32_t blocks_per_group = 0;
  uint32_t row_vectors = 0;  // vectors of kColumnsPerThread in a row
  float inverse_width = 0.0f;
  int64_t num_blocks = 0;  // of all groups
};

/// `block_threads`: threads that a block should have; `sm_threads`: threads of one multiprocessor
/// that should work at once (what the kernel's registers allow). Steps are balanced: no team has
/// more than one row more than another, unless there are too few rows.
inline RowPlan plan_rows(int64_t num_rows, int64_t num_groups, int64_t width, int row_threads,
                         int block_threads, int sm_threads) {
  RowPlan plan;
  plan.rows_per_group = num_rows / num_groups;
  plan.row_vectors = static_cast<uint32_t>(width / kColumnsPerThread);
  plan.inverse_width = 1.0f / static_cast<float>(width);
  plan.threads = row_threads;
  plan.teams = static_cast<int>(std::clamp<int64_t>(
      std::min<int64_t>(block_threads / row_threads, plan.rows_per_group), 1, kMaxTeams));
  if (plan.rows_per_group == 0) return plan;
  const int64_t blocks_per_sm = std::max(1, sm_threads / (row_threads * plan.teams));
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int64_t blocks = std::max<int64_t>(1, kNumSms * blocks_per_sm / num_groups);
  blocks = std::min(blocks, ceil_div(plan.rows_per_group, plan.teams));
  const int64_t steps = ceil_div(plan.rows_per_group, blocks * plan.teams);
  plan.blocks_per_group = static_cast<uint32_t>(ceil_div(plan.rows_per_group, steps * plan.teams));
  plan.num_blocks = plan.blocks_per_group * num_groups;
  return plan;
}

/// True where teams can work: rows of whole vectors, few enough to be numbered in 32 bits.
inline bool fits_teams(int64_t num_rows, int64_t width) {
  return width % kColumnsPerThread == 0 && width <= kMaxTeamWidth &&
         num_rows * (width / kColumnsPerThread) < (int64_t{1} << 32);
}

/// Threads for a row of `width` elements, kColumnsPerThread each.
inline int team_threads(int64_t width) {
  return static_cast<int>((width / kColumnsPerThread + 31) / 32 * 32);
}

}  // namespace longship::kernels
