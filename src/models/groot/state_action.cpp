#include "models/groot/state_action.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"

namespace longship::models {
namespace {

bool listed(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// numpy.isclose(high, low) with its default tolerances: such dimensions are constant.
bool is_constant(double low, double high) {
  return std::abs(high - low) <= 1e-8 + 1e-5 * std::abs(low);
}

double clip(double value) {
  return std::clamp(value, -1.0, 1.0);
}

std::string group_names(const std::map<std::string, GrootGroupStats>& groups) {
  std::vector<std::string> names;
  for (const auto& [name, stats] : groups) names.push_back(name);
  return names.empty() ? "none" : join(names, ", ");
}

const GrootGroupStats& stats_of(const std::map<std::string, GrootGroupStats>& groups,
                                const std::string& name, const char* what,
                                const std::string& source) {
  const auto it = groups.find(name);
  LS_CHECK(it != groups.end(), DataError, "{}: no {} statistics of the group '{}'; there are: {}",
           source, what, name, group_names(groups));
  return it->second;
}

}  // namespace

GrootValues GrootValues::of(std::span<const float> values, int64_t rows, int64_t width) {
  LS_CHECK(static_cast<int64_t>(values.size()) == rows * width, ShapeError,
           "{} numbers are no {} rows of {}", values.size(), rows, width);
  GrootValues out;
  out.rows = rows;
  out.width = width;
  out.data.assign(values.begin(), values.end());
  return out;
}

GrootStateAction::Group GrootStateAction::make_group(const std::string& name, Kind kind,
                                                     const GrootGroupStats& stats, bool percentiles,
                                                     const std::string& where) {
  Group group;
  group.name = name;
  group.kind = kind;
  group.width = stats.width;
  group.steps = stats.steps;
  if (kind == Kind::kSinCos) return group;
  const char* low = kind == Kind::kMeanStd ? "mean" : percentiles ? "q01" : "min";
  const char* high = kind == Kind::kMeanStd ? "std" : percentiles ? "q99" : "max";
  group.low = kind == Kind::kMeanStd ? stats.mean : percentiles ? stats.q01 : stats.min;
  group.high = kind == Kind::kMeanStd ? stats.std : percentiles ? stats.q99 : stats.max;
  for (const auto& [key, values] : {std::pair{low, &group.low}, std::pair{high, &group.high}}) {
    LS_CHECK(static_cast<int64_t>(values->size()) == stats.steps * stats.width, DataError,
             "{}: '{}' has {} numbers, {} x {} are needed", where, key, values->size(), stats.steps,
             stats.width);
    for (size_t i = 0; i < values->size(); ++i) {
      LS_CHECK(std::isfinite((*values)[i]), DataError, "{}: {}[{}] is {}", where, key, i,
               (*values)[i]);
    }
  }
  return group;
}

GrootStateAction::GrootStateAction(GrootModality modality, const GrootStatistics& statistics,
                                   GrootNumbers options)
    : modality_(std::move(modality)), options_(options) {
  const std::string& source = statistics.source;
  modality_.check(source.empty() ? "modality" : source);
  for (const std::string& name : modality_.state_groups) {
    Kind kind = Kind::kMinMax;
    if (listed(modality_.mean_std_state, name)) kind = Kind::kMeanStd;
    if (options_.sincos_state && listed(modality_.sincos_state, name)) kind = Kind::kSinCos;
    const GrootGroupStats& stats = stats_of(statistics.state, name, "state", source);
    const std::string where = fmt::format("{}: state.{}", source, name);
    LS_CHECK(stats.steps == 1, DataError, "{}: statistics of {} steps; a state has one for all",
             where, stats.steps);
    state_.push_back(make_group(name, kind, stats, options_.use_percentiles, where));
  }
  const auto horizon = static_cast<int64_t>(modality_.action_offsets.size());
  for (size_t i = 0; i < modality_.action_groups.size(); ++i) {
    const std::string& name = modality_.action_groups[i];
    const Kind kind = listed(modality_.mean_std_action, name) ? Kind::kMeanStd : Kind::kMinMax;
    const bool relative = is_relative(i);
    const char* what = relative ? "relative_action" : "action";
    const std::string where = fmt::format("{}: {}.{}", source, what, name);
    const GrootGroupStats& stats =
        stats_of(relative ? statistics.relative_action : statistics.action, name, what, source);
    LS_CHECK(!stats.per_step || stats.steps == horizon, DataError,
             "{}: statistics of {} steps, a chunk has {}; they belong to another horizon and must "
             "be computed again",
             where, stats.steps, horizon);
    // Percentiles never stand in for the range of relative actions.
    action_.push_back(make_group(name, kind, stats, options_.use_percentiles && !relative, where));
    if (!relative) continue;
    const std::string& key = modality_.reference_of(i);
    const auto base = std::find_if(state_.begin(), state_.end(),
                                   [&](const Group& group) { return group.name == key; });
    LS_CHECK(base != state_.end(), DataError,
             "{}: is relative to the state group '{}', which is none of: {}", where, key,
             join(modality_.state_groups, ", "));
    LS_CHECK(base->width == stats.width, DataError,
             "{}: has {} dimensions, the state group '{}' that it is relative to has {}", where,
             stats.width, key, base->width);
    LS_CHECK(!modality_.rules[i].pose || !options_.compose_poses || stats.width == 9, DataError,
             "{}: a pose has 9 dimensions (x, y, z and two rows of a rotation), this group {}",
             where, stats.width);
  }
}

int64_t GrootStateAction::state_width() const {
  int64_t sum = 0;
  for (const Group& group : state_) sum += group.width * (group.kind == Kind::kSinCos ? 2 : 1);
  return sum;
}

int64_t GrootStateAction::action_width() const {
  int64_t sum = 0;
  for (const Group& group : action_) sum += group.width;
  return sum;
}

bool GrootStateAction::relative() const {
  return options_.relative_actions && modality_.any_relative();
}

const GrootValues& GrootStateAction::checked(const GrootGroups& groups, const Group& group,
                                             const char* what, bool finite) const {
  const auto it = groups.find(group.name);
  LS_CHECK(it != groups.end(), DataError, "{}.{}: no values were given", what, group.name);
  const GrootValues& values = it->second;
  LS_CHECK(values.width == group.width && values.rows >= 1 &&
               static_cast<int64_t>(values.data.size()) == values.rows * values.width,
           DataError, "{}.{}: {} x {} values, expected rows of {}", what, group.name, values.rows,
           values.width, group.width);
  LS_CHECK(group.steps == 1 || values.rows == group.steps, DataError,
           "{}.{}: {} rows, its statistics are for {} steps", what, group.name, values.rows,
           group.steps);
  for (size_t i = 0; finite && i < values.data.size(); ++i) {
    LS_CHECK(std::isfinite(values.data[i]), DataError, "{}.{}[{}] at row {} is {}", what,
             group.name, static_cast<int64_t>(i) % values.width,
             static_cast<int64_t>(i) / values.width, values.data[i]);
  }
  return values;
}

// The order of roundings is upstream's: a quotient in fp64, stored in the dtype of the values, and
// the rest in that dtype.
GrootValues GrootStateAction::normalise(const Group& group, const GrootValues& raw,
                                        bool clipped) const {
  GrootValues out = raw;
  const auto rounded = [&](double v) {
    return raw.wide ? v : static_cast<double>(static_cast<float>(v));
  };
  for (int64_t r = 0; r < raw.rows; ++r) {
    for (int64_t d = 0; d < raw.width; ++d) {
      const auto s = static_cast<size_t>((group.steps == 1 ? 0 : r) * group.width + d);
      const double low = group.low[s], high = group.high[s];
      double v = raw.at(r, d);
      if (group.kind == Kind::kMeanStd) {
        if (high != 0) v = rounded((v - low) / high);
      } else if (is_constant(low, high)) {
        v = 0;
      } else {
        v = rounded((v - low) / (high - low));
        v = rounded(rounded(2 * v) - 1);
      }
      out.data[static_cast<size_t>(r * raw.width + d)] = clipped ? clip(v) : v;
    }
  }
  return out;
}

GrootValues GrootStateAction::denormalise(const Group& group, const GrootValues& values) const {
  GrootValues out = values;
  const auto rounded = [&](double v) {
    return values.wide ? v : static_cast<double>(static_cast<float>(v));
  };
  for (int64_t r = 0; r < values.rows; ++r) {
    for (int64_t d = 0; d < values.width; ++d) {
      const auto s = static_cast<size_t>((group.steps == 1 ? 0 : r) * group.width + d);
      const double low = group.low[s], high = group.high[s];
      double v = values.at(r, d);
      if (group.kind == Kind::kMeanStd) {
        if (high != 0) v = rounded(v * high + low);
      } else {
        v = rounded(clip(v) + 1) / 2 * (high - low) + low;
      }
      out.data[static_cast<size_t>(r * values.width + d)] = v;
    }
  }
  // The range is fp64, and so is what it is multiplied with.
  if (group.kind == Kind::kMinMax) out.wide = true;
  return out;
}

const GrootValues& GrootStateAction::reference(size_t i, const GrootGroups& raw_state) const {
  const std::string& key = modality_.reference_of(i);
  const auto group =
      std::find_if(state_.begin(), state_.end(), [&](const Group& g) { return g.name == key; });
  return checked(raw_state, *group, "state", true);
}

GrootGroups GrootStateAction::apply_state(const GrootGroups& raw) const {
  GrootGroups out;
  for (const Group& group : state_) {
    const GrootValues& values = checked(raw, group, "state", true);
    if (group.kind != Kind::kSinCos) {
      // Outliers of mean-std states stay what they are.
      out[group.name] =
          normalise(group, values, options_.clip_outliers && group.kind == Kind::kMinMax);
      continue;
    }
    GrootValues& encoded = out[group.name];
    encoded.rows = values.rows;
    encoded.width = 2 * values.width;
    encoded.wide = values.wide;
    encoded.data.resize(2 * values.data.size());
    for (int64_t r = 0; r < values.rows; ++r) {
      for (int64_t d = 0; d < values.width; ++d) {
        const double v = values.at(r, d);
        double* row = &encoded.data[static_cast<size_t>(r * encoded.width)];
        row[d] = values.wide ? std::sin(v) : static_cast<float>(std::sin(v));
        row[d + values.width] = values.wide ? std::cos(v) : static_cast<float>(std::cos(v));
      }
    }
  }
  return out;
}

GrootGroups GrootStateAction::apply_action(const GrootGroups& raw,
                                           const GrootGroups& raw_state) const {
  GrootGroups out;
  for (size_t i = 0; i < action_.size(); ++i) {
    const Group& group = action_[i];
    const GrootValues& values = checked(raw, group, "action", true);
    const auto relative = [&] {
      return groot_to_relative(modality_.rules[i], options_.compose_poses, values,
                               reference(i, raw_state), "action." + group.name);
    };
    out[group.name] =
        normalise(group, is_relative(i) ? relative() : values, options_.clip_outliers);
  }
  return out;
}

GrootGroups GrootStateAction::unapply_action(const GrootGroups& normalised,
                                             const GrootGroups& raw_state) const {
  GrootGroups out;
  for (size_t i = 0; i < action_.size(); ++i) {
    const Group& group = action_[i];
    GrootValues values = denormalise(group, checked(normalised, group, "action", false));
    if (is_relative(i)) {
      values = groot_to_absolute(modality_.rules[i], options_.compose_poses, values,
                                 reference(i, raw_state), "action." + group.name);
    }
    out[group.name] = std::move(values);
  }
  return out;
}

GrootGroups GrootStateAction::unapply_state(const GrootGroups& normalised) const {
  GrootGroups out;
  for (const Group& group : state_) {
    LS_CHECK(group.kind != Kind::kSinCos, ConfigError,
             "state.{}: sines and cosines cannot be turned back into the state", group.name);
    out[group.name] = denormalise(group, checked(normalised, group, "state", false));
  }
  return out;
}

namespace {

/// Writes groups of `widths` beside each other. Returns their rows.
int64_t pack(const GrootGroups& groups, const std::vector<std::pair<std::string, int64_t>>& widths,
             std::span<float> out, int64_t width, const char* what) {
  LS_CHECK(width > 0 && static_cast<int64_t>(out.size()) % width == 0, ShapeError,
           "{}: {} numbers are no rows of {}", what, out.size(), width);
  const int64_t most = static_cast<int64_t>(out.size()) / width;
  std::fill(out.begin(), out.end(), 0.0F);
  int64_t rows = -1, at = 0;
  for (const auto& [name, group_width] : widths) {
    const auto it = groups.find(name);
    LS_CHECK(it != groups.end() && it->second.width == group_width, ShapeError,
             "{}.{}: not given, or not {} wide", what, name, group_width);
    const GrootValues& values = it->second;
    LS_CHECK(rows < 0 || rows == values.rows, ShapeError, "{}.{}: {} rows, other groups have {}",
             what, name, values.rows, rows);
    rows = values.rows;
    LS_CHECK(rows <= most && at + group_width <= width, ShapeError,
             "{}.{}: {} rows and columns {} .. {} do not fit the model's {} x {}; numbers are "
             "never dropped",
             what, name, rows, at, at + group_width, most, width);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < group_width; ++d) {
        out[static_cast<size_t>(r * width + at + d)] = static_cast<float>(values.at(r, d));
      }
    }
    at += group_width;
  }
  return rows;
}

}  // namespace

void GrootStateAction::pack_state(const GrootGroups& normalised, std::span<float> out,
                                  int64_t width) const {
  std::vector<std::pair<std::string, int64_t>> widths;
  for (const Group& group : state_) {
    widths.emplace_back(group.name, group.width * (group.kind == Kind::kSinCos ? 2 : 1));
  }
  pack(normalised, widths, out, width, "state");
}

void GrootStateAction::pack_action(const GrootGroups& normalised, std::span<float> out,
                                   std::span<float> mask, int64_t width) const {
  LS_CHECK(mask.size() == out.size(), ShapeError, "an action mask of {} numbers for {} actions",
           mask.size(), out.size());
  std::vector<std::pair<std::string, int64_t>> widths;
  for (const Group& group : action_) widths.emplace_back(group.name, group.width);
  const int64_t rows = pack(normalised, widths, out, width, "action");
  std::fill(mask.begin(), mask.end(), 0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    std::fill_n(mask.begin() + r * width, action_width(), 1.0F);
  }
}

GrootGroups GrootStateAction::unpack_action(std::span<const float> rows, int64_t width,
                                            int64_t rows_wanted) const {
  LS_CHECK(width >= action_width() && static_cast<int64_t>(rows.size()) % width == 0 &&
               static_cast<int64_t>(rows.size()) >= rows_wanted * width,
           ShapeError, "{} numbers are no {} rows of {} that hold {} dimensions", rows.size(),
           rows_wanted, width, action_width());
  GrootGroups out;
  int64_t at = 0;
  for (const Group& group : action_) {
    GrootValues& values = out[group.name];
    values.rows = rows_wanted;
    values.width = group.width;
    for (int64_t r = 0; r < rows_wanted; ++r) {
      const auto first = rows.begin() + r * width + at;
      values.data.insert(values.data.end(), first, first + group.width);
    }
    at += group.width;
  }
  return out;
}

}  // namespace longship::models
