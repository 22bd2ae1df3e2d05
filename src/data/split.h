#pragma once
// Training and validation parts of a dataset, cut along episodes.

#include <cstdint>
#include <vector>

#include "base/config/visitor.h"
#include "data/dataset.h"

namespace longship::data {

struct Split {
  std::vector<int64_t> train_episodes, val_episodes;  // positions in Dataset::episodes(), ascending
  std::vector<int64_t> train_ids, val_ids;            // sample ids, ascending
};

/// `val`: the last n non-empty episodes, or the episodes with the listed episode_index (order does
/// not matter, a number given twice counts once and is warned about). Throws ConfigError when a
/// number is not an episode of the dataset, when the count is negative, or when nothing is left for
/// training.
Split split_by_episode(const Dataset& dataset, const config::CountOrList& val);

/// Sample ids of the given positions in Dataset::episodes(), in that order.
std::vector<int64_t> sample_ids_of(const Dataset& dataset,
                                   const std::vector<int64_t>& episode_positions);

}  // namespace longship::data
