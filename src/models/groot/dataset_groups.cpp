#include "models/groot/dataset_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/stats.h"

namespace longship::models {
namespace {

int64_t numeric_width(const data::Dataset& dataset, const std::string& column, const char* role) {
  const data::Feature* feature = dataset.find_feature(column);
  std::vector<std::string> names;
  for (const auto& other : dataset.features()) {
    if (other.kind == data::FeatureKind::kNumeric) names.push_back(other.name);
  }
  LS_CHECK(feature != nullptr && feature->kind == data::FeatureKind::kNumeric, DataError,
           "{}: the {} feature '{}' is not there; numeric features: {}", dataset.root().string(),
           role, column, names.empty() ? "none" : join(names, ", "));
  return feature->width();
}

std::string file_of_groups(const GrootConfig& config, const data::Dataset& dataset) {
  if (config.modality) return *config.modality;
  const std::filesystem::path own = dataset.root() / "meta" / "modality.json";
  return std::filesystem::exists(own) ? own.string() : std::string();
}

GrootRanges ranges_from(const std::string& file, const GrootConfig& config,
                        const data::Dataset& dataset) {
  if (file.empty()) {
    return groot_whole_columns(
        config.state_feature, numeric_width(dataset, config.state_feature, "state"),
        config.action_feature, numeric_width(dataset, config.action_feature, "action"));
  }
  GrootRanges out = read_groot_ranges(file, config.state_feature, config.action_feature);
  check_groot_ranges(out, dataset, file);
  for (const GrootRange& range : out.action) {
    LS_CHECK(range.column == config.action_feature, DataError,
             "{}: action.{} reads the column '{}'; all action groups must lie in '{}' "
             "(model.action_feature)",
             file, range.name, range.column, config.action_feature);
  }
  return out;
}

GrootNumbers numbers_of(const GrootConfig& config) {
  GrootNumbers out;
  out.use_percentiles = config.use_percentiles;
  out.clip_outliers = config.clip_outliers;
  out.sincos_state = !config.sincos_state_groups.empty();
  out.relative_actions = config.relative_actions;
  out.compose_poses = config.parity != "loongforge";
  return out;
}

/// Adds the names of a configuration's list to the groups that they mean. A name may begin with
/// "state." or "action." where both have a group of the name.
void choose_groups(const std::vector<std::string>& names, const std::string& key,
                   const GrootModality& modality, std::vector<std::string>& state,
                   std::vector<std::string>* action) {
  const auto has = [](const std::vector<std::string>& groups, const std::string& name) {
    return std::find(groups.begin(), groups.end(), name) != groups.end();
  };
  for (const std::string& name : names) {
    bool found = false;
    for (const bool is_state : {true, false}) {
      if (!is_state && action == nullptr) continue;
      const std::string prefix = is_state ? "state." : "action.";
      const auto& groups = is_state ? modality.state_groups : modality.action_groups;
      const std::string bare = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
      if (!has(groups, bare)) continue;
      (is_state ? state : *action).push_back(bare);
      found = true;
    }
    LS_CHECK(found, ConfigError, "model.{}: no group '{}'; state groups: {}; action groups: {}",
             key, name, join(modality.state_groups, ", "), join(modality.action_groups, ", "));
  }
}

/// The statistics of a range of a column.
GrootGroupStats slice_of(const data::FeatureStats& stats, const GrootRange& range) {
  GrootGroupStats out;
  out.width = range.width();
  const auto cut = [&](const std::vector<double>& from) {
    if (static_cast<int64_t>(from.size()) < range.end) return std::vector<double>();
    return std::vector<double>(from.begin() + range.begin, from.begin() + range.end);
  };
  out.min = cut(stats.min);
  out.max = cut(stats.max);
  out.mean = cut(stats.mean);
  out.std = cut(stats.std);
  out.q01 = cut(stats.q01);
  out.q99 = cut(stats.q99);
  return out;
}

GrootGroupStats by_step(const data::FeatureStats& stats, int64_t horizon, int64_t width) {
  GrootGroupStats out;
  out.width = width;
  out.steps = horizon;
  out.per_step = true;
  out.min = stats.min;
  out.max = stats.max;
  out.mean = stats.mean;
  out.std = stats.std;
  return out;
}

data::FeatureStats flat(const GrootGroupStats& stats, const std::string& source) {
  data::FeatureStats out;
  out.min = stats.min;
  out.max = stats.max;
  out.mean = stats.mean;
  out.std = stats.std;
  out.q01 = stats.q01;
  out.q99 = stats.q99;
  out.source = source;
  return out;
}

}  // namespace

GrootDatasetGroups::GrootDatasetGroups(const GrootConfig& config, const data::Dataset& dataset)
    : source_(file_of_groups(config, dataset)),
      ranges_(ranges_from(source_, config, dataset)),
      processor_(make_processor(config, dataset)) {
  const GrootModality& m = processor_.modality();
  std::map<std::string, std::set<int64_t>> offsets;
  for (const GrootRange& range : ranges_.state) {
    offsets[range.column].insert(m.state_offsets.begin(), m.state_offsets.end());
  }
  for (const GrootRange& range : ranges_.action) {
    offsets[range.column].insert(m.action_offsets.begin(), m.action_offsets.end());
  }
  for (const auto& [column, frames] : offsets)
    columns_[column].assign(frames.begin(), frames.end());
  for (const std::string& name : m.state_groups) {
    bool is_reference = false;
    for (size_t i = 0; processor_.relative() && i < m.rules.size(); ++i) {
      is_reference |= m.rules[i].relative && m.reference_of(i) == name;
    }
    if (is_reference) references_.push_back(*ranges_.find_state(name));
  }
}

GrootModality GrootDatasetGroups::modality(const GrootConfig& config) const {
  GrootModality out = groot_modality_of(ranges_, config.data.horizon);
  const int64_t history = config.sizes().state_history;
  out.state_offsets.resize(static_cast<size_t>(history));
  std::iota(out.state_offsets.begin(), out.state_offsets.end(), 1 - history);
  choose_groups(config.mean_std_groups, "mean_std_groups", out, out.mean_std_state,
                &out.mean_std_action);
  choose_groups(config.sincos_state_groups, "sincos_state_groups", out, out.sincos_state, nullptr);
  LS_CHECK(!config.relative_actions || out.any_relative(), ConfigError,
           "model.relative_actions: no action group of {} is relative; say \"rep\": \"RELATIVE\" "
           "for those that are (and \"state_key\" where the state group has another name), and "
           "name the file in model.modality",
           source_.empty() ? "the whole columns" : source_);
  out.check(source_.empty() ? "whole columns" : source_);
  return out;
}

GrootGroupStats GrootDatasetGroups::relative_group(const GrootConfig& config,
                                                   const data::Dataset& dataset,
                                                   const GrootModality& m, size_t i) {
  const GrootRange& action = *ranges_.find_action(m.action_groups[i]);
  const GrootRange* state = ranges_.find_state(m.reference_of(i));
  LS_CHECK(state != nullptr, DataError,
           "{}: action.{} is relative to the state group '{}', which is none of: {}", source_,
           action.name, m.reference_of(i), join(m.state_groups, ", "));
  const int64_t horizon = config.data.horizon;
  const bool compose = numbers_of(config).compose_poses;
  const std::string key = groot_relative_key(action, *state, m.rules[i], compose, horizon);
  const auto size = static_cast<size_t>(horizon * action.width());
  if (const auto it = dataset.stats().find(key); it != dataset.stats().end()) {
    relative_[key] = it->second;
    return by_step(it->second, horizon, action.width());
  }
  for (const std::string& name :
       {fmt::format("relative_stats_{}.json", horizon), std::string("relative_stats.json")}) {
    const std::filesystem::path path = dataset.root() / "meta" / name;
    // Isaac's files are of composed poses.
    if ((m.rules[i].pose && !compose) || !std::filesystem::exists(path)) continue;
    const auto groups = read_groot_relative_stats(path);
    const auto it = groups.find(action.name);
    if (it == groups.end()) continue;
    if (it->second.width != action.width() || it->second.steps != horizon ||
        it->second.min.size() != size) {
      log::warn("{}: '{}' has {} x {} numbers, {} x {} are needed; not used", path.string(),
                action.name, it->second.steps, it->second.width, horizon, action.width());
      continue;
    }
    relative_[key] = flat(it->second, path.string());
    return it->second;
  }
  log::info("{}: statistics of '{}' are computed from all chunks of {} actions",
            dataset.root().string(), key, horizon);
  LS_CHECK(action.width() == state->width(), DataError,
           "{}: action.{} has {} dimensions, the state group '{}' that it is relative to {}",
           source_, action.name, action.width(), state->name, state->width());
  relative_[key] = groot_relative_stats(dataset, action, *state, m.rules[i], compose, horizon);
  return by_step(relative_[key], horizon, action.width());
}

GrootStatistics GrootDatasetGroups::statistics(const GrootConfig& config,
                                               const data::Dataset& dataset,
                                               const GrootModality& m) {
  std::vector<std::string> need = config.use_percentiles ? std::vector<std::string>{"q01", "q99"}
                                                         : std::vector<std::string>{"min", "max"};
  if (!config.mean_std_groups.empty()) need.insert(need.end(), {"mean", "std"});
  std::map<std::string, data::FeatureStats> columns;
  const auto stats_of = [&](const GrootRange& range) {
    auto it = columns.find(range.column);
    if (it == columns.end()) {
      it = columns.emplace(range.column, data::completed_stats(dataset, range.column, need)).first;
    }
    return slice_of(it->second, range);
  };
  GrootStatistics out;
  out.source = dataset.root().string();
  for (const GrootRange& range : ranges_.state) out.state[range.name] = stats_of(range);
  for (const GrootRange& range : ranges_.action) out.action[range.name] = stats_of(range);
  for (size_t i = 0; config.relative_actions && i < m.action_groups.size(); ++i) {
    if (!m.rules[i].relative) continue;
    out.relative_action[m.action_groups[i]] = relative_group(config, dataset, m, i);
  }
  return out;
}

GrootStateAction GrootDatasetGroups::make_processor(const GrootConfig& config,
                                                    const data::Dataset& dataset) {
  GrootModality m = modality(config);
  const GrootStatistics stats = statistics(config, dataset, m);
  return {std::move(m), stats, numbers_of(config)};
}

GrootValues GrootDatasetGroups::slice(const data::RawSample& sample, const GrootRange& range,
                                      const std::vector<int64_t>& offsets) const {
  const auto it = sample.columns.find(range.column);
  LS_CHECK(it != sample.columns.end(), DataError, "column '{}' was not read", range.column);
  const data::WindowValues& values = it->second;
  const std::vector<int64_t>& frames = columns_.at(range.column);
  LS_CHECK(values.num_offsets == static_cast<int64_t>(frames.size()) && values.width >= range.end &&
               static_cast<int64_t>(values.values.size()) == values.num_offsets * values.width,
           DataError, "'{}' is {} x {}, expected {} frames with columns up to {}", range.column,
           values.num_offsets, values.width, frames.size(), range.end);
  GrootValues out;
  out.rows = static_cast<int64_t>(offsets.size());
  out.width = range.width();
  for (const int64_t offset : offsets) {
    const auto row = std::lower_bound(frames.begin(), frames.end(), offset) - frames.begin();
    const auto first = values.values.begin() + row * values.width;
    out.data.insert(out.data.end(), first + range.begin, first + range.end);
  }
  return out;
}

GrootGroups GrootDatasetGroups::state(const data::RawSample& sample) const {
  GrootGroups out;
  for (const GrootRange& range : ranges_.state) {
    out[range.name] = slice(sample, range, processor_.modality().state_offsets);
  }
  return out;
}

GrootGroups GrootDatasetGroups::action(const data::RawSample& sample) const {
  GrootGroups out;
  for (const GrootRange& range : ranges_.action) {
    out[range.name] = slice(sample, range, processor_.modality().action_offsets);
  }
  return out;
}

std::vector<float> GrootDatasetGroups::references(const GrootGroups& state) const {
  std::vector<float> out;
  for (const GrootRange& range : references_) {
    const GrootValues& values = state.at(range.name);
    for (int64_t d = 0; d < values.width; ++d) {
      out.push_back(static_cast<float>(values.at(values.rows - 1, d)));
    }
  }
  return out;
}

GrootGroups GrootDatasetGroups::reference_groups(std::span<const float> values) const {
  GrootGroups out;
  size_t at = 0;
  for (const GrootRange& range : references_) {
    const auto width = static_cast<size_t>(range.width());
    LS_CHECK(at + width <= values.size(), InternalError,
             "{} numbers of a state that actions are relative to", values.size());
    out[range.name] = GrootValues::of(values.subspan(at, width), 1, range.width());
    at += width;
  }
  LS_CHECK(at == values.size(), InternalError,
           "{} numbers of a state that actions are relative to, {} are needed", values.size(), at);
  return out;
}

void GrootDatasetGroups::scatter_action(const GrootGroups& raw, std::span<float> out,
                                        int64_t column_width) const {
  for (const GrootRange& range : ranges_.action) {
    const GrootValues& values = raw.at(range.name);
    LS_CHECK(values.width == range.width() && range.end <= column_width &&
                 static_cast<int64_t>(out.size()) >= values.rows * column_width,
             ShapeError, "action.{}: {} x {} values for a chunk of {} numbers", range.name,
             values.rows, values.width, out.size());
    for (int64_t r = 0; r < values.rows; ++r) {
      for (int64_t d = 0; d < values.width; ++d) {
        out[static_cast<size_t>(r * column_width + range.begin + d)] =
            static_cast<float>(values.at(r, d));
      }
    }
  }
}

}  // namespace longship::models
