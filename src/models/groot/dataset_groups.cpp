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

/// The checkpoint's description with this run's horizon.
GrootModality told_modality(const GrootProcessor& told, int64_t horizon, int64_t history) {
  GrootModality out = told.modality;
  const std::string where = fmt::format("{}: {}", told.file, printable(told.tag));
  for (size_t k = 0; k < out.action_offsets.size(); ++k) {
    LS_CHECK(out.action_offsets[k] == static_cast<int64_t>(k), ConfigError,
             "{}: action.delta_indices[{}] is {}; only actions from the observed frame on, one "
             "after the other, are supported; name the groups of your robot in model.modality",
             where, k, out.action_offsets[k]);
  }
  const auto rows = static_cast<int64_t>(out.action_offsets.size());
  if (rows != horizon) {
    log::warn("{}: chunks of {} actions; data.horizon says {}, which is used", where, rows,
              horizon);
  }
  out.action_offsets.resize(static_cast<size_t>(horizon));
  std::iota(out.action_offsets.begin(), out.action_offsets.end(), int64_t{0});
  LS_CHECK(static_cast<int64_t>(out.state_offsets.size()) == history, ConfigError,
           "{}: state.delta_indices has {} frames, the model reads {} (state_history_length)",
           where, out.state_offsets.size(), history);
  return out;
}

void check_widths(const std::vector<GrootRange>& ranges,
                  const std::map<std::string, GrootGroupStats>& stats, const char* part,
                  const std::string& source) {
  for (const GrootRange& range : ranges) {
    const auto it = stats.find(range.name);
    LS_CHECK(it == stats.end() || it->second.width == range.width(), ConfigError,
             "{}: {}.{} has {} numbers, the group has {} in this dataset; they belong to another "
             "robot: set model.statistics=dataset",
             source, part, range.name, it->second.width, range.width());
  }
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
  out.q01 = stats.q01;
  out.q99 = stats.q99;
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
    : choice_(groot_choose_groups(config, dataset)),
      checkpoint_stats_(groot_checkpoint_statistics(config, choice_.robot.tag)),
      processor_(make_processor(config, dataset)) {
  const GrootModality& m = processor_.modality();
  std::map<std::string, std::set<int64_t>> offsets;
  for (const GrootRange& range : ranges().state) {
    offsets[range.column].insert(m.state_offsets.begin(), m.state_offsets.end());
  }
  for (const GrootRange& range : ranges().action) {
    offsets[range.column].insert(m.action_offsets.begin(), m.action_offsets.end());
  }
  for (const auto& [column, frames] : offsets)
    columns_[column].assign(frames.begin(), frames.end());
  for (const std::string& name : m.state_groups) {
    bool is_reference = false;
    for (size_t i = 0; processor_.relative() && i < m.rules.size(); ++i) {
      is_reference |= m.rules[i].relative && m.reference_of(i) == name;
    }
    if (is_reference) references_.push_back(*ranges().find_state(name));
  }
}

GrootNumbers GrootDatasetGroups::numbers(const GrootConfig& config) const {
  GrootNumbers out = choice_.numbers;
  out.use_percentiles = config.use_percentiles.value_or(out.use_percentiles);
  out.clip_outliers = config.clip_outliers.value_or(out.clip_outliers);
  out.relative_actions = config.relative_actions.value_or(out.relative_actions);
  out.sincos_state = out.sincos_state || !config.sincos_state_groups.empty();
  out.compose_poses = config.parity != "loongforge";
  return out;
}

GrootModality GrootDatasetGroups::modality(const GrootConfig& config) const {
  const int64_t horizon = config.data.horizon, history = config.sizes().state_history;
  GrootModality out = groot_modality_of(ranges(), horizon);
  if (choice_.processor) {
    out = told_modality(*choice_.processor, horizon, history);
  } else {
    out.state_offsets.resize(static_cast<size_t>(history));
    std::iota(out.state_offsets.begin(), out.state_offsets.end(), 1 - history);
  }
  if (!config.mean_std_groups.empty()) {
    out.mean_std_state.clear();
    out.mean_std_action.clear();
    choose_groups(config.mean_std_groups, "mean_std_groups", out, out.mean_std_state,
                  &out.mean_std_action);
  }
  if (!config.sincos_state_groups.empty()) {
    out.sincos_state.clear();
    choose_groups(config.sincos_state_groups, "sincos_state_groups", out, out.sincos_state,
                  nullptr);
  }
  LS_CHECK(!config.relative_actions.value_or(false) || out.any_relative(), ConfigError,
           "model.relative_actions: no action group of {} is relative; say \"rep\": \"RELATIVE\" "
           "for those that are (and \"state_key\" where the state group has another name), and "
           "name the file in model.modality",
           choice_.processor  ? choice_.processor->file
           : source().empty() ? "the whole columns"
                              : source());
  out.check(source().empty() ? "whole columns" : source());
  return out;
}

GrootGroupStats GrootDatasetGroups::relative_group(const GrootConfig& config,
                                                   const data::Dataset& dataset,
                                                   const GrootModality& m, size_t i) {
  const GrootRange& action = *ranges().find_action(m.action_groups[i]);
  const GrootRange* state = ranges().find_state(m.reference_of(i));
  LS_CHECK(state != nullptr, DataError,
           "{}: action.{} is relative to the state group '{}', which is none of: {}", source(),
           action.name, m.reference_of(i), join(m.state_groups, ", "));
  const int64_t horizon = config.data.horizon;
  const bool compose = numbers(config).compose_poses;
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
           source(), action.name, action.width(), state->name, state->width());
  relative_[key] = groot_relative_stats(dataset, action, *state, m.rules[i], compose, horizon);
  return by_step(relative_[key], horizon, action.width());
}

GrootStatistics GrootDatasetGroups::statistics(const GrootConfig& config,
                                               const data::Dataset& dataset,
                                               const GrootModality& m) {
  if (checkpoint_stats_) {
    check_widths(ranges().state, checkpoint_stats_->state, "state", checkpoint_stats_->source);
    check_widths(ranges().action, checkpoint_stats_->action, "action", checkpoint_stats_->source);
    log::info("{}: numbers are normalised with the statistics of {}", dataset.root().string(),
              checkpoint_stats_->source);
    return *checkpoint_stats_;
  }
  const GrootNumbers how = numbers(config);
  std::vector<std::string> need = how.use_percentiles ? std::vector<std::string>{"q01", "q99"}
                                                      : std::vector<std::string>{"min", "max"};
  if (!m.mean_std_state.empty() || !m.mean_std_action.empty()) {
    need.insert(need.end(), {"mean", "std"});
  }
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
  for (const GrootRange& range : ranges().state) out.state[range.name] = stats_of(range);
  for (const GrootRange& range : ranges().action) out.action[range.name] = stats_of(range);
  for (size_t i = 0; how.relative_actions && i < m.action_groups.size(); ++i) {
    if (!m.rules[i].relative) continue;
    out.relative_action[m.action_groups[i]] = relative_group(config, dataset, m, i);
  }
  return out;
}

GrootStatistics GrootDatasetGroups::kept_statistics(
    const std::map<std::string, data::FeatureStats>& columns) const {
  if (checkpoint_stats_) return *checkpoint_stats_;
  const auto stats_of = [&](const std::string& name) -> const data::FeatureStats& {
    const auto it = columns.find(name);
    LS_CHECK(it != columns.end(), InternalError, "no statistics of '{}' for a checkpoint", name);
    return it->second;
  };
  GrootStatistics out;
  for (const GrootRange& range : ranges().state) {
    out.state[range.name] = slice_of(stats_of(range.column), range);
  }
  for (const GrootRange& range : ranges().action) {
    out.action[range.name] = slice_of(stats_of(range.column), range);
  }
  const GrootModality& m = processor_.modality();
  const GrootNumbers& how = processor_.options();
  const auto horizon = static_cast<int64_t>(m.action_offsets.size());
  for (size_t i = 0; how.relative_actions && i < m.action_groups.size(); ++i) {
    if (!m.rules[i].relative) continue;
    const GrootRange& action = *ranges().find_action(m.action_groups[i]);
    const std::string key = groot_relative_key(action, *ranges().find_state(m.reference_of(i)),
                                               m.rules[i], how.compose_poses, horizon);
    out.relative_action[action.name] = by_step(stats_of(key), horizon, action.width());
  }
  return out;
}

GrootStateAction GrootDatasetGroups::make_processor(const GrootConfig& config,
                                                    const data::Dataset& dataset) {
  GrootModality m = modality(config);
  const GrootStatistics stats = statistics(config, dataset, m);
  return {std::move(m), stats, numbers(config)};
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
  for (const GrootRange& range : ranges().state) {
    out[range.name] = slice(sample, range, processor_.modality().state_offsets);
  }
  return out;
}

GrootGroups GrootDatasetGroups::action(const data::RawSample& sample) const {
  GrootGroups out;
  for (const GrootRange& range : ranges().action) {
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
  for (const GrootRange& range : ranges().action) {
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
