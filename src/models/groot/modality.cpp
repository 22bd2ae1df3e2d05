#include "models/groot/modality.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/strings.h"

namespace longship::models {
namespace {

const GrootRange* find_range(const std::vector<GrootRange>& ranges, const std::string& name) {
  const auto it = std::find_if(ranges.begin(), ranges.end(),
                               [&](const GrootRange& range) { return range.name == name; });
  return it == ranges.end() ? nullptr : &*it;
}

void check_unique(const std::vector<std::string>& names, const char* what,
                  const std::string& source) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    LS_CHECK(!name.empty(), DataError, "{}: {}: a group without a name", source, what);
    LS_CHECK(seen.insert(name).second, DataError, "{}: {}: '{}' stands twice", source, what, name);
  }
}

void check_listed(const std::vector<std::string>& listed, const std::vector<std::string>& groups,
                  const char* what, const std::string& source) {
  for (const std::string& name : listed) {
    LS_CHECK(std::find(groups.begin(), groups.end(), name) != groups.end(), DataError,
             "{}: {} names the group '{}', which is none of: {}", source, what, name,
             groups.empty() ? "none" : join(groups, ", "));
  }
}

void check_offsets(const std::vector<int64_t>& offsets, const char* what,
                   const std::string& source) {
  LS_CHECK(!offsets.empty(), DataError, "{}: {} is empty", source, what);
  LS_CHECK(std::is_sorted(offsets.begin(), offsets.end()), DataError,
           "{}: {} must ascend; the last one is the frame that actions follow", source, what);
}

}  // namespace

const GrootRange* GrootRanges::find_state(const std::string& name) const {
  return find_range(state, name);
}

const GrootRange* GrootRanges::find_action(const std::string& name) const {
  return find_range(action, name);
}

bool GrootModality::any_relative() const {
  return std::any_of(rules.begin(), rules.end(),
                     [](const GrootActionRule& rule) { return rule.relative; });
}

void GrootModality::check(const std::string& source) const {
  check_unique(views, "video.modality_keys", source);
  check_unique(state_groups, "state.modality_keys", source);
  check_unique(action_groups, "action.modality_keys", source);
  LS_CHECK(!state_groups.empty() && !action_groups.empty(), DataError,
           "{}: a model needs a state group and an action group", source);
  LS_CHECK(rules.size() == action_groups.size(), DataError,
           "{}: action.action_configs has {} entries for {} groups", source, rules.size(),
           action_groups.size());
  check_listed(mean_std_state, state_groups, "state.mean_std_embedding_keys", source);
  check_listed(sincos_state, state_groups, "state.sin_cos_embedding_keys", source);
  check_listed(mean_std_action, action_groups, "action.mean_std_embedding_keys", source);
  check_offsets(state_offsets, "state.delta_indices", source);
  check_offsets(action_offsets, "action.delta_indices", source);
  check_offsets(view_offsets, "video.delta_indices", source);
}

GrootRanges groot_whole_columns(const std::string& state_column, int64_t state_width,
                                const std::string& action_column, int64_t action_width) {
  GrootRanges out;
  out.state = {{"state", state_column, 0, state_width}};
  out.action = {{"action", action_column, 0, action_width}};
  out.rules = {{}};
  return out;
}

void check_groot_ranges(const GrootRanges& ranges, const data::Dataset& dataset,
                        const std::string& source) {
  const auto check = [&](const GrootRange& range, const char* what) {
    const data::Feature* feature = dataset.find_feature(range.column);
    LS_CHECK(feature != nullptr && feature->kind == data::FeatureKind::kNumeric, DataError,
             "{}: {}.{} reads the column '{}', which {} does not have as numbers", source, what,
             range.name, range.column, dataset.root().string());
    LS_CHECK(range.end <= feature->width(), DataError,
             "{}: {}.{} is the range {} .. {} of '{}', which has {} numbers per frame in {}",
             source, what, range.name, range.begin, range.end, range.column, feature->width(),
             dataset.root().string());
  };
  for (const GrootRange& range : ranges.state) check(range, "state");
  for (const GrootRange& range : ranges.action) check(range, "action");
}

GrootModality groot_modality_of(const GrootRanges& ranges, int64_t horizon) {
  LS_CHECK(horizon >= 1, ConfigError, "chunks of {} actions", horizon);
  GrootModality out;
  for (const auto& [view, column] : ranges.video) out.views.push_back(view);
  for (const GrootRange& range : ranges.state) out.state_groups.push_back(range.name);
  for (const GrootRange& range : ranges.action) out.action_groups.push_back(range.name);
  out.rules = ranges.rules;
  for (int64_t k = 0; k < horizon; ++k) out.action_offsets.push_back(k);
  return out;
}

}  // namespace longship::models
