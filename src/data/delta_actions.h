#pragma once
// Actions relative to the state ("delta actions", "relative actions"), their inverse, and the
// chunks of actions that a policy is trained on. Torch-free.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

/// Run lengths to a mask: n > 0 gives n ones, n < 0 gives -n zeros, 0 nothing; {6, -1} is six
/// relative dimensions and one absolute one (openpi's make_bool_mask).
std::vector<uint8_t> make_bool_mask(std::span<const int64_t> runs);
/// The shortest runs of a mask, without zeros at its end: the same text for the same meaning.
std::vector<int64_t> mask_runs(std::span<const uint8_t> mask);

/// actions [rows, width] row-major: actions[r][i] -= state[i] where mask[i], in fp32 raw units;
/// mask may be shorter than the row (the rest stays absolute) and no longer than state. Throws
/// ShapeError. Source: openpi DeltaActions.
void apply_delta_actions(std::span<float> actions, int64_t width, std::span<const float> state,
                         std::span<const uint8_t> mask);
/// The inverse, openpi AbsoluteActions. Exact where apply_delta_actions was (the difference is a
/// float), else within half a unit in the last place of the difference.
void undo_delta_actions(std::span<float> actions, int64_t width, std::span<const float> state,
                        std::span<const uint8_t> mask);

/// What a chunk of actions is: the actions of `horizon` frames from a frame on, less that frame's
/// state where the mask says so. Behind the end of an episode its last action is repeated.
struct ChunkSpec {
  std::string action = "action";
  std::string state = "observation.state";
  int64_t horizon = 50;
  std::vector<uint8_t> mask;  // empty: absolute actions
  bool relative() const;      // any dimension
};

/// How the configuration chooses relative dimensions: run lengths as in make_bool_mask, or every
/// dimension but those whose name contains one of the words (upper and lower case alike; lerobot's
/// relative_exclude_joints). At most one of the two.
struct DeltaChoice {
  std::vector<int64_t> runs;
  std::vector<std::string> exclude;
  bool any() const { return !runs.empty() || !exclude.empty(); }
};

/// The mask of a choice for a dataset, as long as its last relative dimension. Throws ConfigError
/// (both ways chosen, runs longer than the action, a word that fits no name), DataError (no state
/// column, no dimension names, a relative dimension without a state).
std::vector<uint8_t> resolve_delta_mask(const DeltaChoice& choice, const Dataset& dataset,
                                        const std::string& action, const std::string& state);

/// Name of the statistics of such chunks, beside those of whole columns in Dataset::stats() and in
/// stats.json: "action relative(6,-1) horizon(50)". Statistics of another mask or horizon have
/// another name and can never be taken for these.
std::string chunk_stats_key(const ChunkSpec& spec);

/// One chunk: rows [horizon, width], is_pad [horizon] with 1 behind the end of the episode.
using ChunkVisitor =
    std::function<void(std::span<const float> rows, std::span<const uint8_t> is_pad)>;

/// Every chunk of an episode (its position in episodes()), one per frame, in order. Reads two
/// columns and no video. Throws DataError for missing columns and numbers that are not finite.
void for_each_chunk(const Dataset& dataset, const ChunkSpec& spec, int64_t episode_position,
                    const ChunkVisitor& visit);

/// Statistics of all rows of all chunks, repeated ones included, as openpi computes them, but
/// exact: float64 mean, population deviation, numpy's linear quantiles. Two passes over the
/// columns; memory depends on the width and the longest episode only (below 4 MiB per dimension
/// beside the episode). The same numbers as exact_stats() of the rows
/// (the deviation to rounding, whose sum has another order). Throws DataError.
FeatureStats chunk_stats(const Dataset& dataset, const ChunkSpec& spec,
                         std::span<const int64_t> episode_positions);
FeatureStats chunk_stats(const Dataset& dataset, const ChunkSpec& spec);  // all episodes

/// The dataset's statistics under chunk_stats_key(), or chunk_stats() of all episodes with a line
/// in the log.
FeatureStats completed_chunk_stats(const Dataset& dataset, const ChunkSpec& spec);

}  // namespace longship::data
