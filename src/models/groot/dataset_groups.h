#pragma once
// A dataset's numbers as the groups of a GR00T model: where they lie, their statistics, and the
// slices of a sample. Torch-free.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "models/groot/config.h"
#include "models/groot/processor.h"
#include "models/groot/state_action.h"

namespace longship::models {

/// Name of the statistics of a relative action group, beside those of whole columns in
/// Dataset::stats() and in a checkpoint's stats.json; another reference, horizon or rule gives
/// another name. Their vectors are [horizon * width].
std::string groot_relative_key(const GrootRange& action, const GrootRange& state,
                               const GrootActionRule& rule, bool compose_poses, int64_t horizon);

/// Minimum, maximum, mean and population deviation of a relative action group, step by step, over
/// all chunks of `horizon` actions that lie inside of their episode (as Isaac-GR00T's
/// gr00t/data/stats.py takes them; it has no percentiles here, because none are used). One pass
/// over two columns. Throws DataError: no episode is long enough, numbers that are not finite, a
/// pose that is no rotation.
data::FeatureStats groot_relative_stats(const data::Dataset& dataset, const GrootRange& action,
                                        const GrootRange& state, const GrootActionRule& rule,
                                        bool compose_poses, int64_t horizon);

/// Which groups of a dataset a run reads, in the order of the model's vectors.
struct GrootGroupChoice {
  GrootRobot robot;
  std::string source;  // file that says where the groups lie; empty: whole columns
  GrootRanges ranges;
  std::optional<GrootProcessor> processor;  // of the checkpoint, where it describes the robot
  GrootNumbers numbers;                     // of the checkpoint, else the defaults
};

/// Without a checkpoint that describes the robot (groot_processor_of()): all groups of
/// config.modality, else of the dataset's meta/modality.json, else one of the whole state column
/// ("state") and one of the whole action column ("action"). With one: its groups, views and rules,
/// at the places that the first of these has for all groups: meta/modality.json, whole columns, the
/// checkpoint's own modality.json. `data.cameras` chooses the views in either case. Throws
/// ConfigError and DataError.
GrootGroupChoice groot_choose_groups(const GrootConfig& config, const data::Dataset& dataset);

/// Immutable and thread-safe.
class GrootDatasetGroups {
 public:
  /// Groups by groot_choose_groups(). Statistics: the checkpoint's with model.statistics:
  /// checkpoint. Else those of absolute groups are slices of the columns' (missing ones are
  /// computed from rows), and those of relative groups the dataset's own under
  /// groot_relative_key(), else those of meta/relative_stats_<horizon>.json or
  /// meta/relative_stats.json where they have the horizon, else computed. Throws ConfigError and
  /// DataError.
  GrootDatasetGroups(const GrootConfig& config, const data::Dataset& dataset);

  const GrootStateAction& processor() const { return processor_; }
  const GrootRobot& robot() const { return choice_.robot; }
  const GrootRanges& ranges() const { return choice_.ranges; }
  /// The file that says where the groups lie; empty: whole columns.
  const std::string& source() const { return choice_.source; }
  /// Statistics of relative groups, by groot_relative_key().
  const std::map<std::string, data::FeatureStats>& relative_stats() const { return relative_; }
  /// The statistics that a checkpoint keeps: those that normalise, and of the dataset's all that
  /// `columns` has of whole columns and relative groups (as Dataset::stats() names them).
  GrootStatistics kept_statistics(const std::map<std::string, data::FeatureStats>& columns) const;
  /// Frame offsets of every column that is read, ascending.
  const std::map<std::string, std::vector<int64_t>>& columns() const { return columns_; }

  /// Raw groups of a sample that was read with columns(). Throws DataError.
  GrootGroups state(const data::RawSample& sample) const;
  GrootGroups action(const data::RawSample& sample) const;
  /// The state groups that actions are relative to, last row, behind each other; empty without.
  std::vector<float> references(const GrootGroups& state) const;
  /// The inverse. Throws InternalError when `values` has another size.
  GrootGroups reference_groups(std::span<const float> values) const;
  /// Groups of actions back at their columns of the action feature: out [rows, column width]. What
  /// no group holds stays as it is.
  void scatter_action(const GrootGroups& raw, std::span<float> out, int64_t column_width) const;

 private:
  GrootNumbers numbers(const GrootConfig& config) const;
  GrootModality modality(const GrootConfig& config) const;
  GrootStatistics statistics(const GrootConfig& config, const data::Dataset& dataset,
                             const GrootModality& modality);
  GrootGroupStats relative_group(const GrootConfig& config, const data::Dataset& dataset,
                                 const GrootModality& modality, size_t i);
  GrootStateAction make_processor(const GrootConfig& config, const data::Dataset& dataset);
  GrootValues slice(const data::RawSample& sample, const GrootRange& range,
                    const std::vector<int64_t>& offsets) const;

  GrootGroupChoice choice_;
  std::optional<GrootStatistics> checkpoint_stats_;  // with model.statistics: checkpoint
  std::map<std::string, data::FeatureStats> relative_;
  GrootStateAction processor_;
  std::map<std::string, std::vector<int64_t>> columns_;
  std::vector<GrootRange> references_;  // state groups that actions are relative to
};

}  // namespace longship::models
