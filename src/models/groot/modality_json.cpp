// Readers of modality.json, processor_config.json, statistics.json and relative_stats.json.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"
#include "models/groot/modality.h"

namespace longship::models {
namespace {

using Json = nlohmann::ordered_json;
using data::lerobot::json_integer;
using data::lerobot::json_number;
using data::lerobot::read_json_object;

// Far beyond any robot; keeps what a broken file can make us allocate small.
constexpr int64_t kMostColumns = 1 << 20;
constexpr size_t kMostGroups = 4096;
constexpr size_t kMostOffsets = 1 << 16;
// Of pictures, every one of which is decoded, kept and given to the vision tower.
constexpr size_t kMostFrames = 64;
constexpr int64_t kOldestFrame = -3600;

std::string keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(printable(key));
  return keys.empty() ? "nothing" : join(keys, ", ");
}

/// A member of an object that must be an object itself. `where` names `object`.
const Json& object_at(const Json& object, const std::string& key, const std::string& where) {
  const auto it = object.find(key);
  LS_CHECK(it != object.end(), DataError, "{}: has no '{}'; it has {}", where, printable(key),
           keys_of(object));
  LS_CHECK(it->is_object(), DataError, "{}: '{}' is no object", where, printable(key));
  LS_CHECK(it->size() <= kMostGroups, DataError, "{}: '{}' has {} entries, at most {} are read",
           where, printable(key), it->size(), kMostGroups);
  return *it;
}

bool given(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  const Json& value = object.at(key);
  LS_CHECK(value.is_string(), DataError, "{}.{} is no text", where, key);
  return value.get<std::string>();
}

std::string text_or(const Json& object, const char* key, const std::string& otherwise,
                    const std::string& where) {
  return given(object, key) ? text_at(object, key, where) : otherwise;
}

std::vector<std::string> texts_at(const Json& object, const char* key, const std::string& where) {
  std::vector<std::string> out;
  if (!given(object, key)) return out;
  const Json& list = object.at(key);
  LS_CHECK(list.is_array() && list.size() <= kMostGroups, DataError,
           "{}.{} is no list of at most {} names", where, key, kMostGroups);
  for (const Json& item : list) {
    LS_CHECK(item.is_string(), DataError, "{}.{}[{}] is no text", where, key, out.size());
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<int64_t> offsets_at(const Json& object, const char* key, const std::string& where) {
  LS_CHECK(given(object, key), DataError, "{}: has no '{}'", where, key);
  const Json& list = object.at(key);
  LS_CHECK(list.is_array() && list.size() <= kMostOffsets, DataError,
           "{}.{} is no list of at most {} frames", where, key, kMostOffsets);
  std::vector<int64_t> out;
  for (const Json& item : list) {
    out.push_back(json_integer(item, fmt::format("{}.{}[{}]", where, key, out.size())));
    LS_CHECK(out.back() >= -kMostColumns && out.back() <= kMostColumns, DataError,
             "{}.{}[{}] is {}", where, key, out.size() - 1, out.back());
  }
  return out;
}

/// Frames of the views, which a sample has seen: the future is not there when a robot acts.
std::vector<int64_t> frames_at(const Json& video, const std::string& where) {
  std::vector<int64_t> out = offsets_at(video, "delta_indices", where);
  LS_CHECK(out.size() <= kMostFrames, DataError,
           "{}.delta_indices has {} frames, at most {} are read", where, out.size(), kMostFrames);
  for (size_t i = 0; i < out.size(); ++i) {
    LS_CHECK(
        out[i] >= kOldestFrame && out[i] <= 0, DataError,
        "{}.delta_indices[{}] is {}; pictures of {} .. 0 frames from the observed one are read",
        where, i, out[i], kOldestFrame);
  }
  return out;
}

/// The name of an enumeration's value in upper case, as files hold it in either case.
std::string choice_at(const Json& object, const char* key, const std::string& otherwise,
                      const std::vector<std::string>& allowed, const std::string& where) {
  std::string value = text_or(object, key, otherwise, where);
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  });
  LS_CHECK(std::find(allowed.begin(), allowed.end(), value) != allowed.end(), DataError,
           "{}.{} is '{}'; known: {}", where, key, printable(value), join(allowed, ", "));
  return value;
}

GrootActionRule rule_of(const Json& entry, const std::string& where) {
  LS_CHECK(entry.is_object(), DataError, "{} is no object", where);
  GrootActionRule rule;
  // DELTA chunks are differences already in the data: nothing is subtracted from them.
  const std::string rep =
      choice_at(entry, "rep", "ABSOLUTE", {"RELATIVE", "ABSOLUTE", "DELTA"}, where);
  rule.relative = rep == "RELATIVE";
  rule.difference = rep == "DELTA";
  const std::string type = choice_at(entry, "type", "NON_EEF", {"NON_EEF", "EEF"}, where);
  rule.format =
      choice_at(entry, "format", "DEFAULT", {"DEFAULT", "XYZ_ROT6D", "XYZ_ROTVEC"}, where);
  rule.pose = type == "EEF";
  LS_CHECK(!rule.relative || !rule.pose || rule.format == "XYZ_ROT6D", DataError,
           "{}: relative poses of format {} are not supported; XYZ_ROT6D is", where, rule.format);
  rule.state_key = text_or(entry, "state_key", "", where);
  return rule;
}

GrootRange range_of(const std::string& name, const Json& entry, const std::string& column,
                    const std::string& where) {
  LS_CHECK(entry.is_object(), DataError, "{} is no object", where);
  for (const char* key : {"start", "end"}) {
    LS_CHECK(given(entry, key), DataError, "{}: has no '{}'; it has {}", where, key,
             keys_of(entry));
  }
  GrootRange range;
  range.name = name;
  range.column = text_or(entry, "original_key", column, where);
  range.begin = json_integer(entry.at("start"), where + ".start");
  range.end = json_integer(entry.at("end"), where + ".end");
  LS_CHECK(range.begin >= 0 && range.begin < range.end && range.end <= kMostColumns, DataError,
           "{}: start {} and end {} are no range of columns", where, range.begin, range.end);
  return range;
}

/// Numbers of a statistic and its shape: [width], or [steps][width].
void read_statistic(const Json& value, const std::string& where, GrootGroupStats& stats,
                    std::vector<double>& out) {
  LS_CHECK(value.is_array() && !value.empty(), DataError, "{} is no list of numbers", where);
  const bool nested = value.front().is_array();
  const size_t rows = nested ? value.size() : 1;
  const size_t width = nested ? value.front().size() : value.size();
  LS_CHECK(width > 0 && width <= static_cast<size_t>(kMostColumns) && rows <= kMostOffsets,
           DataError, "{} has {} x {} numbers", where, rows, width);
  if (stats.width == 0) {
    stats.width = static_cast<int64_t>(width);
    stats.steps = static_cast<int64_t>(rows);
    stats.per_step = nested;
  }
  LS_CHECK(stats.width == static_cast<int64_t>(width) &&
               stats.steps == static_cast<int64_t>(rows) && stats.per_step == nested,
           DataError, "{} has {} x {} numbers, the group's other statistics have {} x {}", where,
           rows, width, stats.steps, stats.width);
  out.reserve(rows * width);
  for (size_t r = 0; r < rows; ++r) {
    const Json& row = nested ? value[r] : value;
    LS_CHECK(row.is_array() && row.size() == width, DataError,
             "{}[{}] is no list of {} numbers like the rows before it", where, r, width);
    for (size_t d = 0; d < width; ++d) {
      const std::string place =
          nested ? fmt::format("{}[{}][{}]", where, r, d) : fmt::format("{}[{}]", where, d);
      out.push_back(json_number(row[d], place));
      LS_CHECK(std::isfinite(out.back()), DataError, "{} is {}; statistics must be finite", place,
               out.back());
    }
  }
}

std::map<std::string, GrootGroupStats> groups_of(const Json& object, const std::string& where) {
  std::map<std::string, GrootGroupStats> out;
  for (const auto& [name, entry] : object.items()) {
    if (name == "__fingerprints__") continue;
    const std::string at = fmt::format("{}.{}", where, printable(name));
    LS_CHECK(entry.is_object(), DataError, "{} is no object of statistics", at);
    GrootGroupStats& stats = out[name];
    for (const auto& [key, target] : {std::pair{"min", &stats.min}, std::pair{"max", &stats.max},
                                      std::pair{"mean", &stats.mean}, std::pair{"std", &stats.std},
                                      std::pair{"q01", &stats.q01}, std::pair{"q99", &stats.q99}}) {
      if (given(entry, key)) read_statistic(entry.at(key), at + "." + key, stats, *target);
    }
    LS_CHECK(stats.width > 0, DataError, "{} has none of min, max, mean, std, q01, q99; it has {}",
             at, keys_of(entry));
  }
  return out;
}

}  // namespace

GrootRanges read_groot_ranges(const std::filesystem::path& path, const std::string& state_column,
                              const std::string& action_column) {
  const Json file = read_json_object(path);
  GrootRanges out;
  for (const auto& [name, entry] : object_at(file, "state", path.string()).items()) {
    out.state.push_back(range_of(name, entry, state_column,
                                 fmt::format("{}: state.{}", path.string(), printable(name))));
  }
  for (const auto& [name, entry] : object_at(file, "action", path.string()).items()) {
    const std::string where = fmt::format("{}: action.{}", path.string(), printable(name));
    out.action.push_back(range_of(name, entry, action_column, where));
    out.rules.push_back(rule_of(entry, where));
  }
  for (const char* part : {"video", "annotation"}) {
    if (!given(file, part)) continue;
    const bool is_video = std::string_view(part) == "video";
    for (const auto& [name, entry] : object_at(file, part, path.string()).items()) {
      const std::string where = fmt::format("{}: {}.{}", path.string(), part, printable(name));
      LS_CHECK(entry.is_object(), DataError, "{} is no object", where);
      const std::string otherwise = (is_video ? "observation.images." : "annotation.") + name;
      (is_video ? out.video : out.annotation)
          .emplace_back(name, text_or(entry, "original_key", otherwise, where));
    }
  }
  LS_CHECK(!out.state.empty() && !out.action.empty(), DataError,
           "{}: 'state' and 'action' need a group each", path.string());
  return out;
}

GrootModality read_groot_modality(const std::filesystem::path& path, const std::string& tag) {
  const Json file = read_json_object(path);
  std::string where = path.string();
  const Json* all = &file;
  if (file.contains("processor_kwargs")) {
    all = &object_at(object_at(file, "processor_kwargs", where), "modality_configs",
                     where + ": processor_kwargs");
    where += ": processor_kwargs.modality_configs";
  }
  const Json& entry = object_at(*all, tag, where);
  where = fmt::format("{}: {}", path.string(), printable(tag));
  GrootModality out;
  const Json& state = object_at(entry, "state", where);
  out.state_groups = texts_at(state, "modality_keys", where + ".state");
  out.state_offsets = offsets_at(state, "delta_indices", where + ".state");
  out.sincos_state = texts_at(state, "sin_cos_embedding_keys", where + ".state");
  out.mean_std_state = texts_at(state, "mean_std_embedding_keys", where + ".state");
  const Json& action = object_at(entry, "action", where);
  out.action_groups = texts_at(action, "modality_keys", where + ".action");
  out.action_offsets = offsets_at(action, "delta_indices", where + ".action");
  out.mean_std_action = texts_at(action, "mean_std_embedding_keys", where + ".action");
  out.rules.resize(out.action_groups.size());
  if (given(action, "action_configs")) {
    const Json& rules = action.at("action_configs");
    LS_CHECK(rules.is_array() && rules.size() == out.action_groups.size(), DataError,
             "{}.action.action_configs must be a list with an entry for each of the {} groups",
             where, out.action_groups.size());
    for (size_t i = 0; i < rules.size(); ++i) {
      out.rules[i] = rule_of(rules[i], fmt::format("{}.action.action_configs[{}]", where, i));
    }
  }
  if (given(entry, "video")) {
    const Json& video = object_at(entry, "video", where);
    out.views = texts_at(video, "modality_keys", where + ".video");
    out.view_offsets = frames_at(video, where + ".video");
  }
  if (given(entry, "language")) {
    const auto keys =
        texts_at(object_at(entry, "language", where), "modality_keys", where + ".language");
    if (!keys.empty()) out.language_key = keys.front();
  }
  out.check(where);
  return out;
}

GrootProcessorSettings read_groot_processor_settings(const std::filesystem::path& path) {
  const Json file = read_json_object(path);
  const Json& all = object_at(file, "processor_kwargs", path.string());
  const std::string where = path.string() + ": processor_kwargs";
  GrootProcessorSettings out;
  for (const auto& [tag, entry] : object_at(all, "modality_configs", where).items()) {
    out.tags.push_back(tag);
  }
  for (const auto& [key, target] :
       {std::pair{"use_percentiles", &out.use_percentiles},
        std::pair{"clip_outliers", &out.clip_outliers},
        std::pair{"apply_sincos_state_encoding", &out.sincos_state},
        std::pair{"use_relative_action", &out.relative_actions},
        std::pair{"letter_box_transform", &out.letterbox},
        std::pair{"use_albumentations", &out.albumentations},
        std::pair{"formalize_language", &out.formalize_language},
        std::pair{"exclude_state", &out.exclude_state}, std::pair{"use_tactile", &out.tactile}}) {
    if (!given(all, key)) continue;
    LS_CHECK(all.at(key).is_boolean(), DataError, "{}.{} is neither true nor false", where, key);
    *target = all.at(key).get<bool>();
  }
  if (given(all, "shortest_image_edge")) {
    out.shortest_edge = json_integer(all.at("shortest_image_edge"), where + ".shortest_image_edge");
  }
  if (given(all, "crop_fraction")) {
    out.crop_fraction = json_number(all.at("crop_fraction"), where + ".crop_fraction");
  }
  return out;
}

GrootStatistics read_groot_statistics(const std::filesystem::path& path, const std::string& tag) {
  const Json file = read_json_object(path);
  const Json& entry = object_at(file, tag, path.string());
  const std::string where = fmt::format("{}: {}", path.string(), printable(tag));
  GrootStatistics out;
  out.source = where;
  out.state = groups_of(object_at(entry, "state", where), where + ".state");
  out.action = groups_of(object_at(entry, "action", where), where + ".action");
  if (given(entry, "relative_action")) {
    out.relative_action =
        groups_of(object_at(entry, "relative_action", where), where + ".relative_action");
  }
  return out;
}

std::map<std::string, GrootGroupStats> read_groot_relative_stats(
    const std::filesystem::path& path) {
  return groups_of(read_json_object(path), path.string());
}

}  // namespace longship::models
