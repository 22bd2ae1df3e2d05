#include "nn/patch_grid.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace longship::nn {
namespace {

/// A place between two rows (or columns) of the position table.
struct Between {
  int64_t low = 0, high = 0;
  float fraction = 0;  // of `high`
};

std::vector<Between> places(int64_t count, int64_t side) {
  // The library's own linspace: its last bit decides which two rows a place lies between.
  const at::Tensor at = at::linspace(0, side - 1, count, at::kFloat);
  std::vector<Between> out;
  for (int64_t i = 0; i < count; ++i) {
    const float place = at.data_ptr<float>()[i];
    const auto low = static_cast<int64_t>(place);
    out.push_back({low, std::min(low + 1, side - 1), place - static_cast<float>(low)});
  }
  return out;
}

}  // namespace

std::array<int64_t, 2> merged_grid(const std::array<int64_t, 2>& grid, int64_t merge,
                                   size_t picture) {
  LS_CHECK(grid[0] > 0 && grid[1] > 0 && grid[0] % merge == 0 && grid[1] % merge == 0, DataError,
           "picture {} has {}x{} patches; both must be multiples of {}, since blocks of {}x{} are "
           "merged into one token",
           picture, grid[0], grid[1], merge, merge, merge);
  return {grid[0] / merge, grid[1] / merge};
}

PatchTables patch_tables(std::span<const std::array<int64_t, 2>> grids, int64_t side,
                         int64_t merge) {
  int64_t count = 0;
  for (size_t v = 0; v < grids.size(); ++v) {
    merged_grid(grids[v], merge, v);
    count += grids[v][0] * grids[v][1];
  }
  PatchTables out{at::empty({count}, at::kLong), at::empty({count}, at::kLong),
                  at::empty({count, 4}, at::kLong), at::empty({count, 4}, at::kFloat)};
  auto* rows = out.rows.data_ptr<int64_t>();
  auto* columns = out.columns.data_ptr<int64_t>();
  auto* index = out.position_index.data_ptr<int64_t>();
  auto* weight = out.position_weight.data_ptr<float>();
  for (const auto& [height, width] : grids) {
    const std::vector<Between> down = places(height, side), across = places(width, side);
    const int64_t block = merge * merge, blocks = width / merge;
    for (int64_t i = 0; i < height * width; ++i) {
      const int64_t b = i / block, inner = i % block;
      const int64_t row = b / blocks * merge + inner / merge;
      const int64_t column = b % blocks * merge + inner % merge;
      *rows++ = row;
      *columns++ = column;
      const Between& y = down[static_cast<size_t>(row)];
      const Between& x = across[static_cast<size_t>(column)];
      const int64_t corners[] = {y.low * side + x.low, y.low * side + x.high, y.high * side + x.low,
                                 y.high * side + x.high};
      const float weights[] = {(1 - y.fraction) * (1 - x.fraction), (1 - y.fraction) * x.fraction,
                               y.fraction * (1 - x.fraction), y.fraction * x.fraction};
      index = std::copy_n(corners, 4, index);
      weight = std::copy_n(weights, 4, weight);
    }
  }
  return out;
}

}  // namespace longship::nn
