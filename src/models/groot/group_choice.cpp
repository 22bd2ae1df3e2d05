// Which groups and views of a dataset a run reads, and where they lie.

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "models/groot/dataset_groups.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;

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

GrootRanges ranges_from(const std::string& file, const GrootConfig& config,
                        const data::Dataset& dataset) {
  if (!file.empty()) return read_groot_ranges(file, config.state_feature, config.action_feature);
  return groot_whole_columns(
      config.state_feature, numeric_width(dataset, config.state_feature, "state"),
      config.action_feature, numeric_width(dataset, config.action_feature, "action"));
}

void check_ranges(const GrootGroupChoice& choice, const GrootConfig& config,
                  const data::Dataset& dataset) {
  if (choice.source.empty()) return;
  check_groot_ranges(choice.ranges, dataset, choice.source);
  for (const GrootRange& range : choice.ranges.action) {
    LS_CHECK(range.column == config.action_feature, DataError,
             "{}: action.{} reads the column '{}'; all action groups must lie in '{}' "
             "(model.action_feature)",
             choice.source, printable(range.name), printable(range.column), config.action_feature);
  }
}

/// Where groups may lie, in order of preference; empty: whole columns.
std::vector<std::string> candidates(const GrootConfig& config, const data::Dataset& dataset) {
  std::vector<std::string> out;
  const fs::path own = dataset.root() / "meta" / "modality.json";
  if (fs::exists(own)) out.push_back(own.string());
  if (dataset.find_feature(config.state_feature) != nullptr &&
      dataset.find_feature(config.action_feature) != nullptr) {
    out.emplace_back();
  }
  const fs::path kept = groot_description_folder(config) / "modality.json";
  if (fs::exists(kept)) out.push_back(kept.string());
  return out;
}

std::string names_of(const std::vector<GrootRange>& ranges) {
  std::vector<std::string> names;
  for (const GrootRange& range : ranges) names.push_back(printable(range.name));
  return names.empty() ? "nothing" : join(names, ", ");
}

/// The groups of `told` that `ranges` lacks, for messages.
std::string missing_groups(const GrootRanges& ranges, const GrootModality& told) {
  std::vector<std::string> out;
  for (const std::string& name : told.state_groups) {
    if (ranges.find_state(name) == nullptr) out.push_back("state." + printable(name));
  }
  for (const std::string& name : told.action_groups) {
    if (ranges.find_action(name) == nullptr) out.push_back("action." + printable(name));
  }
  return join(out, ", ");
}

/// Only the groups of `told`, in its order.
GrootRanges chosen_ranges(const GrootRanges& all, const GrootModality& told) {
  GrootRanges out;
  for (const std::string& name : told.state_groups) out.state.push_back(*all.find_state(name));
  for (const std::string& name : told.action_groups) out.action.push_back(*all.find_action(name));
  out.rules = told.rules;
  out.video = all.video;
  out.annotation = all.annotation;
  return out;
}

using Views = std::vector<std::pair<std::string, std::string>>;

const std::string* camera_of(const Views& views, const std::string& view) {
  const auto it = std::find_if(views.begin(), views.end(),
                               [&](const auto& entry) { return entry.first == view; });
  return it == views.end() ? nullptr : &it->second;
}

/// The cameras of the checkpoint's views, in its order.
Views told_views(const GrootProcessor& told, const Views& own, const Views& kept,
                 const data::Dataset& dataset) {
  const std::vector<std::string> cameras = dataset.cameras();
  const auto has = [&](const std::string& camera) {
    return std::find(cameras.begin(), cameras.end(), camera) != cameras.end();
  };
  Views out;
  for (const std::string& view : told.modality.views) {
    const std::string* here = camera_of(own, view);
    const std::string* there = camera_of(kept, view);
    if (here != nullptr) {
      out.emplace_back(view, *here);
    } else if (there != nullptr && has(*there)) {
      out.emplace_back(view, *there);
    } else if (has("observation.images." + view)) {
      out.emplace_back(view, "observation.images." + view);
    } else if (has(view)) {
      out.emplace_back(view, view);
    } else {
      LS_CHECK(told.modality.views.size() == 1 && cameras.size() == 1, ConfigError,
               "{}: the view '{}' of '{}' is no camera of {}; cameras: {}; name it in "
               "meta/modality.json or in the recipe, e.g. data.cameras: {{{}: {}}}",
               told.file, printable(view), printable(told.tag), dataset.root().string(),
               cameras.empty() ? "none" : join(cameras, ", "), printable(view),
               cameras.empty() ? "<camera>" : cameras.front());
      out.emplace_back(view, cameras.front());
    }
  }
  return out;
}

std::string printable_names(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(printable(name));
  return join(out, ", ");
}

void compare_views(const GrootProcessor& told, const GrootConfig& config) {
  std::vector<std::string> own;
  for (const auto& [view, camera] : config.data.cameras) {
    if (!camera.empty()) own.push_back(view);
  }
  if (own == told.modality.views) return;
  log::warn("{}: '{}' sees {}; data.cameras says {}, which is used", told.file, printable(told.tag),
            printable_names(told.modality.views), join(own, ", "));
}

/// The dataset's file wins over the checkpoint's, but not silently.
void compare_places(const GrootRanges& used, const std::string& source, const GrootRanges& kept,
                    const std::string& file) {
  const auto compare = [&](const std::vector<GrootRange>& ours,
                           const std::vector<GrootRange>& theirs, const char* part) {
    for (const GrootRange& a : ours) {
      for (const GrootRange& b : theirs) {
        if (a.name != b.name || (a.begin == b.begin && a.end == b.end)) continue;
        log::warn("{}: {}.{} is {} .. {}; {} says {} .. {}, which is used", file, part,
                  printable(a.name), b.begin, b.end, source.empty() ? "the whole column" : source,
                  a.begin, a.end);
      }
    }
  };
  compare(used.state, kept.state, "state");
  compare(used.action, kept.action, "action");
}

void choose_told(const GrootConfig& config, const data::Dataset& dataset,
                 GrootGroupChoice& choice) {
  const GrootProcessor& told = *choice.processor;
  std::string faults;
  bool found = false;
  for (const std::string& file : candidates(config, dataset)) {
    const GrootRanges ranges = ranges_from(file, config, dataset);
    const std::string missing = missing_groups(ranges, told.modality);
    if (missing.empty()) {
      choice.source = file;
      choice.ranges = chosen_ranges(ranges, told.modality);
      found = true;
      break;
    }
    faults += fmt::format("\n  {} has state: {}; action: {}; not {}",
                          file.empty() ? "whole columns" : file, names_of(ranges.state),
                          names_of(ranges.action), missing);
  }
  LS_CHECK(found, ConfigError,
           "{}: '{}' reads groups of which nothing says where they lie in {}; add them to its "
           "meta/modality.json, or name your own groups in model.modality{}",
           told.file, printable(told.tag), dataset.root().string(), faults);
  const fs::path kept_file = groot_description_folder(config) / "modality.json";
  GrootRanges kept;
  if (fs::exists(kept_file)) {
    kept = ranges_from(kept_file.string(), config, dataset);
    compare_places(choice.ranges, choice.source, kept, kept_file.string());
  }
  if (config.data.cameras.empty()) {
    choice.ranges.video = told_views(told, choice.ranges.video, kept.video, dataset);
  } else {
    compare_views(told, config);
  }
  log::info("{}: groups, views and rules of '{}' are those of {}: state {}; action {}; views {}",
            dataset.root().string(), printable(told.tag), told.file, names_of(choice.ranges.state),
            names_of(choice.ranges.action), printable_names(told.modality.views));
}

}  // namespace

GrootGroupChoice groot_choose_groups(const GrootConfig& config, const data::Dataset& dataset) {
  GrootGroupChoice out;
  out.robot = groot_robot_of(config, dataset);
  out.processor = groot_processor_of(config, out.robot.tag);
  out.numbers = groot_checkpoint_numbers(config);
  if (out.processor) {
    choose_told(config, dataset, out);
  } else {
    const fs::path own = dataset.root() / "meta" / "modality.json";
    if (config.modality) {
      out.source = *config.modality;
    } else if (fs::exists(own)) {
      out.source = own.string();
    }
    out.ranges = ranges_from(out.source, config, dataset);
  }
  check_ranges(out, config, dataset);
  return out;
}

}  // namespace longship::models
