#pragma once
// Numbers of a robot to numbers of a GR00T model and back, group by group. Source: Isaac-GR00T
// gr00t/data/state_action/state_action_processor.py and gr00t/data/utils.py; pinned by
// tests/golden/groot_preprocess/state_action. Torch-free.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "models/groot/modality.h"

namespace longship::models {

/// Values of one group, [rows, width] row-major. Upstream computes absolute groups in fp32 and
/// relative ones in fp64: `wide` says which, and values that are not wide are floats.
struct GrootValues {
  int64_t rows = 0, width = 0;
  bool wide = false;
  std::vector<double> data;

  static GrootValues of(std::span<const float> values, int64_t rows, int64_t width);
  double at(int64_t row, int64_t column) const {
    return data[static_cast<size_t>(row * width + column)];
  }
};
using GrootGroups = std::map<std::string, GrootValues>;

struct GrootNumbers {
  bool use_percentiles = false;   // q01 and q99 for min and max, of groups that are not relative
  bool clip_outliers = true;      // normalised values to [-1, 1]
  bool sincos_state = false;      // GrootModality::sincos_state counts
  bool relative_actions = false;  // GrootActionRule::relative counts
  /// Poses are composed, inverse(reference) * target, as Isaac does; false: numbers of poses are
  /// subtracted like those of joints, as LoongForge does (in fp32).
  bool compose_poses = true;
};

/// Immutable and thread-safe.
class GrootStateAction {
 public:
  /// Throws DataError naming `statistics.source`, group and statistic: a group without statistics
  /// or with some missing, of two shapes or not finite, statistics of relative actions that are
  /// missing or of another number of steps than the chunk has, references and actions of different
  /// widths.
  GrootStateAction(GrootModality modality, const GrootStatistics& statistics, GrootNumbers options);

  const GrootModality& modality() const { return modality_; }
  const GrootNumbers& options() const { return options_; }
  /// Widths of all groups behind each other; a sine-cosine group counts twice.
  int64_t state_width() const;
  int64_t action_width() const;
  /// Whether some group is taken relative to a state.
  bool relative() const;

  /// Raw to normalised. Groups that the modality does not name are passed over. Constant dimensions
  /// become 0. Sines and cosines: all sines, then all cosines. Throws DataError naming group, row,
  /// dimension and value: a group that is missing, of the wrong width, or not finite.
  GrootGroups apply_state(const GrootGroups& raw) const;
  /// Relative first, on raw numbers, against the last row of the state; then normalised. Also
  /// throws DataError for a pose that is no rotation.
  GrootGroups apply_action(const GrootGroups& raw, const GrootGroups& raw_state) const;

  /// Back to raw, absolute numbers. The values of min-max groups are clipped to [-1, 1] first.
  /// `raw_state` is read where groups are relative.
  GrootGroups unapply_action(const GrootGroups& normalised, const GrootGroups& raw_state) const;
  /// Throws ConfigError where a group is sines and cosines, which hold no way back.
  GrootGroups unapply_state(const GrootGroups& normalised) const;

  /// Groups behind each other in fp32 with zeros behind: out [rows, width]; rows and width of `out`
  /// may be larger than those of the groups, never smaller (ShapeError).
  void pack_state(const GrootGroups& normalised, std::span<float> out, int64_t width) const;
  /// The same, and mask [rows, width]: 1 on what the groups fill.
  void pack_action(const GrootGroups& normalised, std::span<float> out, std::span<float> mask,
                   int64_t width) const;
  /// The groups of rows [rows, width] of a model; only the first `rows_wanted` of them.
  GrootGroups unpack_action(std::span<const float> rows, int64_t width, int64_t rows_wanted) const;

 private:
  enum class Kind { kMinMax, kMeanStd, kSinCos };
  struct Group {
    std::string name;
    Kind kind = Kind::kMinMax;
    int64_t width = 0;
    int64_t steps = 1;              // rows of `low` and `high`: 1 for all rows of the values
    std::vector<double> low, high;  // min and max, or mean and deviation
  };
  static Group make_group(const std::string& name, Kind kind, const GrootGroupStats& stats,
                          bool percentiles, const std::string& where);
  const GrootValues& checked(const GrootGroups& groups, const Group& group, const char* what,
                             bool finite) const;
  GrootValues normalise(const Group& group, const GrootValues& raw, bool clip) const;
  GrootValues denormalise(const Group& group, const GrootValues& values) const;
  /// Values of the state group that action group `i` is relative to.
  const GrootValues& reference(size_t i, const GrootGroups& raw_state) const;
  bool is_relative(size_t i) const {
    return options_.relative_actions && modality_.rules[i].relative;
  }

  GrootModality modality_;
  GrootNumbers options_;
  std::vector<Group> state_, action_;
};

/// Rows of an action group relative to the last row of `state`, a group of the same width, and
/// back. Joints: differences, in fp64; poses as below. Without `compose_poses` everything is a
/// difference in the dtype of the values. `where` names the group in messages. Throws DataError.
GrootValues groot_to_relative(const GrootActionRule& rule, bool compose_poses,
                              const GrootValues& raw, const GrootValues& state,
                              const std::string& where);
GrootValues groot_to_absolute(const GrootActionRule& rule, bool compose_poses,
                              const GrootValues& relative, const GrootValues& state,
                              const std::string& where);

/// A pose of 9 numbers relative to a reference: position R0^T (p - p0), rotation R0^T R; and back,
/// p0 + R0 p, R0 R. A rotation is its first two rows; they are made orthonormal by Gram-Schmidt in
/// fp32, or in fp64 where `wide` says so, and then brought to the nearest rotation in fp64. `where`
/// names the pose in messages. Throws DataError for rows without a direction.
void groot_relative_pose(std::span<const double> reference, bool reference_wide,
                         std::span<const double> pose, bool pose_wide, std::span<double> out,
                         const std::string& where);
void groot_absolute_pose(std::span<const double> reference, bool reference_wide,
                         std::span<const double> pose, bool pose_wide, std::span<double> out,
                         const std::string& where);

}  // namespace longship::models
