// Statistics of relative action groups.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "models/groot/dataset_groups.h"

namespace longship::models {
namespace {

/// Columns [begin, end) of frames [first, first + count) of rows that are `width` wide.
GrootValues columns_of(const std::vector<float>& rows, int64_t width, const GrootRange& range,
                       int64_t first, int64_t count) {
  GrootValues out;
  out.rows = count;
  out.width = range.width();
  for (int64_t r = first; r < first + count; ++r) {
    const auto at = rows.begin() + r * width;
    out.data.insert(out.data.end(), at + range.begin, at + range.end);
  }
  return out;
}

/// Of one step and dimension. Sums are of differences to the first value, so that a large mean
/// costs no digits.
struct Sums {
  double first = 0, min = 0, max = 0, sum = 0, squares = 0;
  void add(double v, bool is_first) {
    if (is_first) first = min = max = v;
    min = std::min(min, v);
    max = std::max(max, v);
    sum += v - first;
    squares += (v - first) * (v - first);
  }
};

}  // namespace

std::string groot_relative_key(const GrootRange& action, const GrootRange& state,
                               const GrootActionRule& rule, bool compose_poses, int64_t horizon) {
  return fmt::format("{}[{}:{}] {} {}[{}:{}] by step horizon({})", action.column, action.begin,
                     action.end, rule.pose && compose_poses ? "as a pose of" : "minus",
                     state.column, state.begin, state.end, horizon);
}

data::FeatureStats groot_relative_stats(const data::Dataset& dataset, const GrootRange& action,
                                        const GrootRange& state, const GrootActionRule& rule,
                                        bool compose_poses, int64_t horizon) {
  const int64_t action_width = dataset.find_feature(action.column)->width();
  const int64_t state_width = dataset.find_feature(state.column)->width();
  std::vector<Sums> sums(static_cast<size_t>(horizon * action.width()));
  int64_t count = 0, longest = 0;
  for (size_t e = 0; e < dataset.episodes().size(); ++e) {
    const data::Episode& episode = dataset.episodes()[e];
    longest = std::max(longest, episode.length);
    if (episode.length < horizon) continue;
    const std::array<int64_t, 1> here{static_cast<int64_t>(e)};
    const std::vector<float> actions = dataset.column_values(action.column, here);
    const std::vector<float> states = dataset.column_values(state.column, here);
    LS_CHECK(static_cast<int64_t>(actions.size()) == episode.length * action_width &&
                 static_cast<int64_t>(states.size()) == episode.length * state_width,
             DataError, "{}: episode {} has {} frames, but {} numbers of '{}' and {} of '{}'",
             dataset.root().string(), episode.index, episode.length, actions.size(), action.column,
             states.size(), state.column);
    for (int64_t frame = 0; frame + horizon <= episode.length; ++frame, ++count) {
      const std::string where =
          fmt::format("{}: episode {} frame {}: action.{}", dataset.root().string(), episode.index,
                      frame, action.name);
      const GrootValues chunk = groot_to_relative(
          rule, compose_poses, columns_of(actions, action_width, action, frame, horizon),
          columns_of(states, state_width, state, frame, 1), where);
      for (size_t i = 0; i < sums.size(); ++i) {
        LS_CHECK(std::isfinite(chunk.data[i]), DataError,
                 "{}[{}] at row {}, less the state, is {}; statistics need finite numbers", where,
                 static_cast<int64_t>(i) % action.width(), static_cast<int64_t>(i) / action.width(),
                 chunk.data[i]);
        sums[i].add(chunk.data[i], count == 0);
      }
    }
  }
  LS_CHECK(count > 0, DataError,
           "{}: no episode is as long as a chunk of {} actions (data.horizon), the longest has {} "
           "frames; statistics of relative actions need one",
           dataset.root().string(), horizon, longest);
  data::FeatureStats out;
  out.count = count;
  out.source = fmt::format("{} (computed from chunks)", dataset.root().string());
  for (const Sums& s : sums) {
    const double n = static_cast<double>(count), mean = s.sum / n;
    out.min.push_back(s.min);
    out.max.push_back(s.max);
    out.mean.push_back(s.first + mean);
    out.std.push_back(std::sqrt(std::max(0.0, s.squares / n - mean * mean)));
  }
  return out;
}

}  // namespace longship::models
