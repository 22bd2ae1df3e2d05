#include "data/delta_actions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "base/error.h"
#include "base/strings.h"

namespace longship::data {
namespace {

void shift_actions(std::span<float> actions, int64_t width, std::span<const float> state,
                   std::span<const uint8_t> mask, float sign) {
  const auto n = static_cast<int64_t>(mask.size());
  LS_CHECK(width > 0 && static_cast<int64_t>(actions.size()) % width == 0, ShapeError,
           "delta actions: {} numbers are no rows of width {}", actions.size(), width);
  LS_CHECK(n <= width && n <= static_cast<int64_t>(state.size()), ShapeError,
           "delta actions: the mask has {} dimensions, the actions {}, the state {}", n, width,
           state.size());
  for (size_t row = 0; row < actions.size(); row += static_cast<size_t>(width)) {
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i]) actions[row + i] += sign * state[i];
    }
  }
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

const Feature& numeric_feature(const Dataset& dataset, const std::string& name, const char* why) {
  const Feature* feature = dataset.find_feature(name);
  LS_CHECK(feature != nullptr && feature->kind == FeatureKind::kNumeric, DataError,
           "{}: relative actions need the {} feature '{}', which the dataset does not have",
           dataset.root().string(), why, name);
  return *feature;
}

/// The mask of every dimension whose name contains none of the words.
std::vector<uint8_t> mask_by_name(const std::vector<std::string>& exclude, const Dataset& dataset,
                                  const Feature& action) {
  LS_CHECK(static_cast<int64_t>(action.dim_names.size()) == action.width(), DataError,
           "{}: data.delta_exclude needs the names of the dimensions of '{}', but meta/info.json "
           "lists {} names for {} dimensions; give data.delta_actions as run lengths, e.g. [6, -1]",
           dataset.root().string(), action.name, action.dim_names.size(), action.width());
  std::vector<uint8_t> mask(action.dim_names.size(), 1);
  for (const std::string& word : exclude) {
    LS_CHECK(!word.empty(), ConfigError, "data.delta_exclude: an empty word fits every dimension");
    bool found = false;
    for (size_t i = 0; i < mask.size(); ++i) {
      if (lower(action.dim_names[i]).find(lower(word)) == std::string::npos) continue;
      mask[i] = 0;
      found = true;
    }
    LS_CHECK(found, ConfigError,
             "data.delta_exclude: '{}' is part of no dimension name of '{}'; names: {}", word,
             action.name, join(action.dim_names, ", "));
  }
  return mask;
}

}  // namespace

std::vector<uint8_t> make_bool_mask(std::span<const int64_t> runs) {
  std::vector<uint8_t> mask;
  for (const int64_t run : runs) {
    LS_CHECK(run > -100000 && run < 100000, ConfigError, "delta mask: a run of {} dimensions", run);
    mask.insert(mask.end(), static_cast<size_t>(std::abs(run)), run > 0 ? 1 : 0);
  }
  return mask;
}

std::vector<int64_t> mask_runs(std::span<const uint8_t> mask) {
  std::vector<int64_t> runs;
  for (const uint8_t bit : mask) {
    const int64_t step = bit != 0 ? 1 : -1;
    if (!runs.empty() && (runs.back() > 0) == (step > 0)) {
      runs.back() += step;
    } else {
      runs.push_back(step);
    }
  }
  if (!runs.empty() && runs.back() < 0) runs.pop_back();
  return runs;
}

void apply_delta_actions(std::span<float> actions, int64_t width, std::span<const float> state,
                         std::span<const uint8_t> mask) {
  shift_actions(actions, width, state, mask, -1.0F);
}

void undo_delta_actions(std::span<float> actions, int64_t width, std::span<const float> state,
                        std::span<const uint8_t> mask) {
  shift_actions(actions, width, state, mask, 1.0F);
}

bool ChunkSpec::relative() const {
  return std::any_of(mask.begin(), mask.end(), [](uint8_t bit) { return bit != 0; });
}

std::vector<uint8_t> resolve_delta_mask(const DeltaChoice& choice, const Dataset& dataset,
                                        const std::string& action_name,
                                        const std::string& state_name) {
  if (!choice.any()) return {};
  LS_CHECK(choice.runs.empty() || choice.exclude.empty(), ConfigError,
           "data.delta_actions and data.delta_exclude both choose the relative dimensions; give "
           "one of them");
  const Feature& action = numeric_feature(dataset, action_name, "action");
  const Feature& state = numeric_feature(dataset, state_name, "state");
  std::vector<uint8_t> mask = choice.runs.empty() ? mask_by_name(choice.exclude, dataset, action)
                                                  : make_bool_mask(choice.runs);
  LS_CHECK(static_cast<int64_t>(mask.size()) <= action.width(), ConfigError,
           "data.delta_actions: [{}] names {} dimensions, '{}' of {} has {}",
           fmt::join(choice.runs, ", "), mask.size(), action_name, dataset.root().string(),
           action.width());
  while (!mask.empty() && mask.back() == 0) mask.pop_back();
  LS_CHECK(!mask.empty(), ConfigError,
           "data.delta_{}: no dimension is relative; leave it out for absolute actions",
           choice.runs.empty() ? "exclude" : "actions");
  LS_CHECK(static_cast<int64_t>(mask.size()) <= state.width(), DataError,
           "{}: dimension {} of '{}' cannot be relative, because the state '{}' has only {} "
           "dimensions; dimension i of the action is taken relative to dimension i of the state",
           dataset.root().string(), mask.size() - 1, action_name, state_name, state.width());
  return mask;
}

std::string chunk_stats_key(const ChunkSpec& spec) {
  return fmt::format("{} relative({}) horizon({})", spec.action,
                     fmt::join(mask_runs(spec.mask), ","), spec.horizon);
}

void for_each_chunk(const Dataset& dataset, const ChunkSpec& spec, int64_t episode_position,
                    const ChunkVisitor& visit) {
  const Feature& action = numeric_feature(dataset, spec.action, "action");
  LS_CHECK(spec.horizon >= 1, ConfigError, "chunks of {} actions", spec.horizon);
  const auto width = static_cast<size_t>(action.width());
  const auto horizon = static_cast<size_t>(spec.horizon);
  const std::array<int64_t, 1> here{episode_position};
  const std::vector<float> actions = dataset.column_values(spec.action, here);
  const size_t length = actions.size() / width;
  std::vector<float> states;
  size_t state_width = 0;
  if (spec.relative()) {
    state_width = static_cast<size_t>(numeric_feature(dataset, spec.state, "state").width());
    states = dataset.column_values(spec.state, here);
    LS_CHECK(states.size() == length * state_width, DataError,
             "{}: episode {} has {} rows of '{}' and {} of '{}'", dataset.root().string(),
             dataset.episodes()[static_cast<size_t>(episode_position)].index, length, spec.action,
             states.size() / state_width, spec.state);
  }
  const auto check_finite = [&](const std::vector<float>& values, size_t row_width,
                                const std::string& name) {
    const auto bad =
        std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
    if (bad == values.end()) return;
    const auto at = static_cast<size_t>(bad - values.begin());
    throw DataError(fmt::format(
        "{}: episode {} frame {}: {}[{}] is {}; statistics need finite numbers",
        dataset.root().string(), dataset.episodes()[static_cast<size_t>(episode_position)].index,
        at / row_width, name, at % row_width, *bad));
  };
  check_finite(actions, width, spec.action);
  if (state_width > 0) check_finite(states, state_width, spec.state);

  std::vector<float> rows(horizon * width);
  std::vector<uint8_t> is_pad(horizon);
  for (size_t frame = 0; frame < length; ++frame) {
    for (size_t k = 0; k < horizon; ++k) {
      const size_t from = std::min(frame + k, length - 1);
      is_pad[k] = frame + k >= length ? 1 : 0;
      std::copy_n(&actions[from * width], width, &rows[k * width]);
    }
    if (state_width > 0) {
      apply_delta_actions(rows, action.width(), {&states[frame * state_width], state_width},
                          spec.mask);
    }
    visit(rows, is_pad);
  }
}

}  // namespace longship::data
