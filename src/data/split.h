#pragma once
// Training and validation parts of a dataset, cut along episodes.

#include <cstdint>
#include <string>
#include <vector>

#include "base/config/visitor.h"
#include "data/dataset.h"
#include "data/id_ranges.h"

namespace longship::data {

struct Split {
  std::vector<int64_t> train_episodes, val_episodes;  // positions in Dataset::episodes(), ascending
  IdRanges train_ids, val_ids;                        // sample ids, ascending
};

/// `val`: the last n non-empty episodes, or the episodes with the listed episode_index. `subset`:
/// episode_index of the episodes to use at all; empty: every one. In lists the order does not
/// matter, and a number given twice counts once and is warned about. Throws ConfigError when a
/// number is not an episode of the dataset (or of the subset), when the count is negative, or when
/// nothing is left for training. `key` names the dataset's part of the recipe in messages, e.g.
/// "data.".
Split split_by_episode(const Dataset& dataset, const config::CountOrList& val,
                       const std::vector<int64_t>& subset = {}, const std::string& key = "data.");

/// Sample ids of the given positions in Dataset::episodes(), in that order.
IdRanges id_ranges_of(const Dataset& dataset, const std::vector<int64_t>& episode_positions);
std::vector<int64_t> sample_ids_of(const Dataset& dataset,
                                   const std::vector<int64_t>& episode_positions);

}  // namespace longship::data
