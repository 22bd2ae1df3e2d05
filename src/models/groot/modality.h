#pragma once
// Which numbers of a dataset a GR00T model reads: named groups of the state and the action, how
// each is learned, and their statistics. Readers of the files that hold them. Torch-free and
// immutable after reading. Sources: Isaac-GR00T gr00t/data/types.py (ModalityConfig),
// lerobot_episode_loader.py (meta/modality.json).

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace longship::models {

/// How an action group is learned.
struct GrootActionRule {
  bool relative = false;  // to the state of the last observed frame
  bool pose = false;      // x, y, z and the first two rows of a rotation: 9 numbers
  std::string state_key;  // the state group it is relative to; empty: the one of its own name
  // What files say besides, for writing them again.
  bool difference = false;         // DELTA: the data holds differences, nothing is subtracted
  std::string format = "DEFAULT";  // of a pose: XYZ_ROT6D, XYZ_ROTVEC
};

/// Columns [begin, end) of a numeric feature.
struct GrootRange {
  std::string name;    // of the group
  std::string column;  // of the dataset
  int64_t begin = 0, end = 0;
  int64_t width() const { return end - begin; }
};

/// Where groups and views lie in a dataset: meta/modality.json, in file order.
struct GrootRanges {
  std::vector<GrootRange> state, action;
  std::vector<GrootActionRule> rules;  // per action group
  /// (view, column) and (annotation, column).
  std::vector<std::pair<std::string, std::string>> video, annotation;

  const GrootRange* find_state(const std::string& name) const;   // nullptr when absent
  const GrootRange* find_action(const std::string& name) const;  // nullptr when absent
};

/// What a model of one embodiment reads and how: groups in the order in which their numbers lie
/// behind each other in the model's vectors.
struct GrootModality {
  std::vector<std::string> views;
  std::vector<std::string> state_groups, action_groups;
  std::vector<GrootActionRule> rules;  // per action group
  /// Groups that are normalised with mean and deviation, and state groups that become sines and
  /// cosines where that is switched on.
  std::vector<std::string> mean_std_state, mean_std_action, sincos_state;
  /// Frames, relative to the sample's.
  std::vector<int64_t> view_offsets = {0}, state_offsets = {0}, action_offsets;
  std::string language_key;

  /// Whether any action group is declared relative.
  bool any_relative() const;
  /// The state group that action group `i` is relative to.
  const std::string& reference_of(size_t i) const {
    return rules[i].state_key.empty() ? action_groups[i] : rules[i].state_key;
  }
  /// Names unique and known, one rule per action group, offsets there and ascending. Throws
  /// DataError beginning with `source`.
  void check(const std::string& source) const;
};

/// Statistics of one group. A vector is empty when that statistic is not known.
struct GrootGroupStats {
  int64_t width = 0;
  int64_t steps = 1;      // 1: the same for every step of a chunk
  bool per_step = false;  // [steps, width], row-major, else [width]
  std::vector<double> min, max, mean, std, q01, q99;
};

/// Statistics of one embodiment, by group.
struct GrootStatistics {
  std::map<std::string, GrootGroupStats> state, action;
  /// Of chunks of relative actions, [steps, width].
  std::map<std::string, GrootGroupStats> relative_action;
  std::string source;  // for messages
};

/// meta/modality.json. `original_key` defaults to `state_column`, `action_column`, and
/// "observation.images.<view>". An action group may also say "rep", "type", "format" and
/// "state_key", spelled as in modality_config.json; without them it is absolute. Throws DataError
/// naming file and key: not JSON, no "state" or "action", start and end missing, negative, or no
/// range.
GrootRanges read_groot_ranges(const std::filesystem::path& path, const std::string& state_column,
                              const std::string& action_column);
/// Whole columns as the one state group "state" and the one action group "action".
GrootRanges groot_whole_columns(const std::string& state_column, int64_t state_width,
                                const std::string& action_column, int64_t action_width);
/// Every range lies inside its column, every state and action column is numeric. Throws DataError
/// naming group, range and column.
void check_groot_ranges(const GrootRanges& ranges, const data::Dataset& dataset,
                        const std::string& source);
/// All groups of `ranges` in their order, `horizon` actions from the sample's frame on.
GrootModality groot_modality_of(const GrootRanges& ranges, int64_t horizon);

/// Modality configuration of an embodiment tag: a file of {tag: {video, state, action, language}},
/// or a checkpoint's processor_config.json, which has it under
/// processor_kwargs.modality_configs. A view has at most 64 frames, each 3600 .. 0 before the
/// observed one. Throws DataError naming file and key.
GrootModality read_groot_modality(const std::filesystem::path& path, const std::string& tag);

/// What a checkpoint's processor_config.json says besides; empty where it says nothing.
struct GrootProcessorSettings {
  std::vector<std::string> tags;  // embodiments that it describes, in the file's order
  std::optional<bool> use_percentiles, clip_outliers, sincos_state, relative_actions;
  std::optional<int64_t> shortest_edge;  // pixels
  std::optional<double> crop_fraction;
  std::optional<bool> letterbox, albumentations, formalize_language;
  std::optional<bool> exclude_state, tactile;
};
/// Throws DataError naming file and key.
GrootProcessorSettings read_groot_processor_settings(const std::filesystem::path& path);

/// statistics.json of a checkpoint: {tag: {state, action, relative_action: {group: {min, ...}}}}.
/// Statistics must be finite and of one shape per group. Throws DataError naming file and key.
GrootStatistics read_groot_statistics(const std::filesystem::path& path, const std::string& tag);
/// meta/relative_stats.json (or relative_stats_<horizon>.json): {group: {min: [steps][width],
/// ...}}; "__fingerprints__" is passed over.
std::map<std::string, GrootGroupStats> read_groot_relative_stats(const std::filesystem::path& path);

}  // namespace longship::models
