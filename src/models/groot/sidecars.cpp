#include "models/groot/sidecars.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/augment/albumentations.h"
#include "data/lerobot/json_text.h"
#include "models/groot/embodiment.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A file of the checkpoint that the run started from, or {}.
Json started_from(const GrootConfig& config, const char* name) {
  const fs::path folder = groot_checkpoint_folder(config);
  if (folder.empty() || !fs::exists(folder / name)) return Json::object();
  return data::lerobot::read_json_object(folder / name);
}

/// An object inside of processor_config.json, made where there is none. Throws DataError for
/// anything else there: a recipe with groups of its own has not read the file.
Json& object_in(Json& object, const char* key, const GrootConfig& config) {
  Json& out = object[key];
  if (out.is_null()) out = Json::object();
  LS_CHECK(out.is_object(), DataError, "{}: '{}' is no object",
           (groot_checkpoint_folder(config) / "processor_config.json").string(), key);
  return out;
}

/// Upstream's null for lists that say nothing.
Json names_or_null(const std::vector<std::string>& names) {
  return names.empty() ? Json(nullptr) : Json(names);
}

Json rule_json(const GrootActionRule& rule) {
  return {{"rep", rule.relative     ? "RELATIVE"
                  : rule.difference ? "DELTA"
                                    : "ABSOLUTE"},
          {"type", rule.pose ? "EEF" : "NON_EEF"},
          {"format", rule.format},
          {"state_key", rule.state_key.empty() ? Json(nullptr) : Json(rule.state_key)}};
}

Json part_json(const std::vector<int64_t>& offsets, const std::vector<std::string>& keys) {
  return {{"delta_indices", offsets},
          {"modality_keys", keys},
          {"sin_cos_embedding_keys", nullptr},
          {"mean_std_embedding_keys", nullptr},
          {"action_configs", nullptr}};
}

/// The text of a sample that people write, as the model's entry names it.
std::string language_key(const GrootDescription& part) {
  if (!part.modality.language_key.empty()) return part.modality.language_key;
  const auto& annotation = part.ranges.annotation;
  return "annotation." +
         (annotation.empty() ? "human.action.task_description" : annotation.front().first);
}

Json modality_json(const GrootDescription& part) {
  const GrootModality& m = part.modality;
  Json state = part_json(m.state_offsets, m.state_groups);
  state["sin_cos_embedding_keys"] = names_or_null(m.sincos_state);
  state["mean_std_embedding_keys"] = names_or_null(m.mean_std_state);
  Json action = part_json(m.action_offsets, m.action_groups);
  action["mean_std_embedding_keys"] = names_or_null(m.mean_std_action);
  Json rules = Json::array();
  for (const GrootActionRule& rule : m.rules) rules.push_back(rule_json(rule));
  action["action_configs"] = std::move(rules);
  return {{"video", part_json(m.view_offsets, m.views)},
          {"state", std::move(state)},
          {"action", std::move(action)},
          {"language", part_json({0}, {language_key(part)})}};
}

Json settings_json(const GrootConfig& config, const GrootNumbers& numbers) {
  const GrootSizes sizes = config.sizes();
  const data::JitterRanges jitter;
  Json jitter_json = nullptr;
  if (config.color_jitter) {
    jitter_json = {{"brightness", jitter.brightness},
                   {"contrast", jitter.contrast},
                   {"saturation", jitter.saturation},
                   {"hue", jitter.hue}};
  }
  Json out = {
      {"use_albumentations", true},
      {"random_rotation_angle", nullptr},
      {"color_jitter_params", std::move(jitter_json)},
      {"shortest_image_edge", config.shortest_edge},
      {"crop_fraction", config.crop_fraction},
      {"model_name", config.is_n17() ? "nvidia/Cosmos-Reason2-2B" : "nvidia/Eagle-Block2A-2B-v2"},
      {"model_type", config.is_n17() ? "qwen" : "eagle"},
      {"formalize_language", true},
      {"max_state_dim", sizes.max_state_dim},
      {"max_action_dim", sizes.max_action_dim},
      {"max_action_horizon", sizes.horizon},
      {"use_percentiles", numbers.use_percentiles},
      {"clip_outliers", numbers.clip_outliers},
      {"apply_sincos_state_encoding", numbers.sincos_state},
      {"use_relative_action", numbers.relative_actions}};
  if (config.is_n17()) {
    out["letter_box_transform"] = config.letterbox;
    out["use_mean_std"] = false;  // read by nothing; the lists of groups decide
    out["exclude_state"] = false;
    out["state_dropout_prob"] = config.state_input_dropout;
  }
  return out;
}

/// The file has one value of each for all robots.
void check_switches(std::span<const GrootDescription> parts) {
  struct Switch {
    const char* name;
    const char* key;
    bool GrootNumbers::*value;
  };
  for (const Switch& one :
       {Switch{"use_percentiles", "use_percentiles", &GrootNumbers::use_percentiles},
        Switch{"clip_outliers", "clip_outliers", &GrootNumbers::clip_outliers},
        Switch{"apply_sincos_state_encoding", "sincos_state_groups", &GrootNumbers::sincos_state},
        Switch{"use_relative_action", "relative_actions", &GrootNumbers::relative_actions}}) {
    std::vector<std::string> values;
    bool agree = true;
    for (const GrootDescription& part : parts) {
      const bool value = part.numbers.*one.value;
      agree = agree && value == parts.front().numbers.*one.value;
      values.push_back(
          fmt::format("{} for '{}' of {}", value, printable(part.robot.tag), part.dataset));
    }
    LS_CHECK(agree, ConfigError,
             "processor_config.json of a checkpoint has one {} for all robots, this mixture has "
             "{}; set model.{} so that it is the same for all datasets",
             one.name, join(values, ", "), one.key);
  }
}

std::string processor_text(const GrootConfig& config, std::span<const GrootDescription> parts) {
  Json file = started_from(config, "processor_config.json");
  file["processor_class"] = config.is_n17() ? "Gr00tN1d7Processor" : "Gr00tN1d6Processor";
  Json& kwargs = object_in(file, "processor_kwargs", config);
  object_in(kwargs, "modality_configs", config);
  // Read only where shortest_image_edge and crop_fraction are null.
  const int64_t edge = config.shortest_edge;
  const auto crop = static_cast<int64_t>(static_cast<double>(edge) * config.crop_fraction);
  if (!kwargs.contains("image_crop_size")) kwargs["image_crop_size"] = {crop, crop};
  if (!kwargs.contains("image_target_size")) kwargs["image_target_size"] = {edge, edge};
  check_switches(parts);
  kwargs.update(settings_json(config, parts.front().numbers));

  std::map<std::string, Json> own;
  std::set<std::string> differ;
  for (const GrootDescription& part : parts) {
    Json entry = modality_json(part);
    const auto [it, is_new] = own.emplace(part.robot.tag, entry);
    if (is_new) continue;
    // Several datasets of a robot may show it from other sides.
    entry["video"] = it->second["video"];
    if (entry != it->second) differ.insert(part.robot.tag);
  }
  for (const auto& [tag, entry] : own) kwargs["modality_configs"][tag] = entry;
  for (const std::string& tag : differ) {
    log::warn(
        "datasets of the embodiment '{}' differ in their groups; processor_config.json of "
        "checkpoints leaves it out",
        printable(tag));
    kwargs["modality_configs"].erase(tag);
  }
  return file.dump(2) + "\n";
}

/// [width], or [steps][width].
Json statistic_json(const GrootGroupStats& stats, const std::vector<double>& values) {
  if (!stats.per_step) return values;
  Json rows = Json::array();
  for (int64_t r = 0; r < stats.steps; ++r) {
    const auto first = values.begin() + r * stats.width;
    rows.push_back(std::vector<double>(first, first + stats.width));
  }
  return rows;
}

Json groups_json(const std::map<std::string, GrootGroupStats>& groups,
                 const std::vector<std::string>& order) {
  Json out = Json::object();
  const auto add = [&](const std::string& name, const GrootGroupStats& stats) {
    Json& entry = out[name] = Json::object();
    for (const auto& [key, values] : {std::pair{"min", &stats.min}, std::pair{"max", &stats.max},
                                      std::pair{"mean", &stats.mean}, std::pair{"std", &stats.std},
                                      std::pair{"q01", &stats.q01}, std::pair{"q99", &stats.q99}}) {
      if (!values->empty()) entry[key] = statistic_json(stats, *values);
    }
  };
  for (const std::string& name : order) {
    if (const auto it = groups.find(name); it != groups.end()) add(name, it->second);
  }
  for (const auto& [name, stats] : groups) {
    if (!out.contains(name)) add(name, stats);
  }
  return out;
}

/// {tag: {state: {group: ...}}}, which another run or Isaac is to read. Of robots that are not this
/// run's the numbers are not looked at.
void check_statistics(const Json& file, const fs::path& path) {
  for (const auto& [tag, entry] : file.items()) {
    const std::string where = fmt::format("{}: {}", path.string(), printable(tag));
    LS_CHECK(entry.is_object(), DataError, "{} is no object of statistics", where);
    for (const auto& [part, groups] : entry.items()) {
      LS_CHECK(groups.is_object(), DataError, "{}.{} is no object of groups", where,
               printable(part));
      for (const auto& [group, values] : groups.items()) {
        LS_CHECK(values.is_object(), DataError, "{}.{}.{} is no object of statistics", where,
                 printable(part), printable(group));
      }
    }
  }
}

/// NaN and infinities, which the reader turns into words.
bool holds_words(const Json& value) {
  return value.is_string() ||
         (value.is_structured() && std::any_of(value.begin(), value.end(), holds_words));
}

std::string statistics_text(const GrootConfig& config, std::span<const GrootDescription> parts) {
  const Json before = started_from(config, "statistics.json");
  check_statistics(before, groot_checkpoint_folder(config) / "statistics.json");
  Json file = Json::object();
  for (const auto& [tag, entry] : before.items()) {
    if (holds_words(entry)) {
      log::warn(
          "statistics of '{}' in the checkpoint that the run starts from are not finite; "
          "statistics.json of checkpoints leaves them out",
          printable(tag));
      continue;
    }
    file[tag] = entry;
  }
  std::set<std::string> written;
  for (const GrootDescription& part : parts) {
    const GrootStatistics& s = part.statistics;
    Json entry = {{"state", groups_json(s.state, part.modality.state_groups)},
                  {"action", groups_json(s.action, part.modality.action_groups)}};
    if (!s.relative_action.empty()) {
      entry["relative_action"] = groups_json(s.relative_action, part.modality.action_groups);
    }
    if (written.insert(part.robot.tag).second) {
      file[part.robot.tag] = std::move(entry);
    } else if (file[part.robot.tag] != entry) {
      log::warn(
          "several datasets are of the embodiment '{}', each normalised with statistics of "
          "its own; statistics.json of checkpoints has those of the first, stats.json all",
          printable(part.robot.tag));
    }
  }
  return file.dump(2) + "\n";
}

std::string embodiment_text(const GrootConfig& config, std::span<const GrootDescription> parts) {
  std::map<std::string, int64_t> ids = groot_published_ids(config.version);
  for (const auto& [tag, slot] : groot_checkpoint_ids(config)) ids[tag] = slot;
  for (const GrootDescription& part : parts) ids[part.robot.tag] = part.robot.slot;
  return Json(ids).dump(2) + "\n";
}

Json ranges_json(const std::vector<GrootRange>& ranges, const std::vector<GrootActionRule>* rules) {
  Json out = Json::object();
  for (size_t i = 0; i < ranges.size(); ++i) {
    const GrootRange& range = ranges[i];
    Json& entry = out[range.name];
    entry = {{"start", range.begin}, {"end", range.end}, {"original_key", range.column}};
    if (rules != nullptr) entry.update(rule_json(rules->at(i)));
  }
  return out;
}

Json places_json(const GrootRanges& ranges) {
  Json video = Json::object(), annotation = Json::object();
  for (const auto& [view, camera] : ranges.video) video[view] = {{"original_key", camera}};
  for (const auto& [name, column] : ranges.annotation) {
    annotation[name] = {{"original_key", column}};
  }
  if (annotation.empty()) {
    annotation["human.action.task_description"] = {{"original_key", "task_index"}};
  }
  return {{"state", ranges_json(ranges.state, nullptr)},
          {"action", ranges_json(ranges.action, &ranges.rules)},
          {"video", std::move(video)},
          {"annotation", std::move(annotation)}};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> groot_sidecars(
    const GrootConfig& config, std::span<const GrootDescription> parts) {
  LS_CHECK(!parts.empty(), InternalError, "a checkpoint of no dataset");
  std::vector<std::pair<std::string, std::string>> out = {
      {"processor_config.json", processor_text(config, parts)},
      {"statistics.json", statistics_text(config, parts)},
      {"embodiment_id.json", embodiment_text(config, parts)}};
  const Json places = places_json(parts.front().ranges);
  const bool agree = std::all_of(parts.begin(), parts.end(), [&](const GrootDescription& part) {
    return places_json(part.ranges) == places;
  });
  if (agree) out.emplace_back("modality.json", places.dump(2) + "\n");
  return out;
}

}  // namespace longship::models
