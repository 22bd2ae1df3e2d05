// Formats v2.0 and v2.1: JSON lines for tasks and episodes, one table and one video per camera for
// each episode.

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "data/lerobot/json_text.h"
#include "data/lerobot/layout.h"

namespace longship::data::lerobot {

namespace {

using Json = nlohmann::ordered_json;

const Json& required(const Json& object, const char* key) {
  const auto found = object.find(key);
  LS_CHECK(found != object.end() && !found->is_null(), DataError, "the key '{}' is absent", key);
  return *found;
}

std::string text_of(const Json& value, const char* key) {
  LS_CHECK(value.is_string(), DataError, "'{}' is no string", key);
  return value.get<std::string>();
}

bool present(const Layout& layout, const char* name, Findings& findings) {
  std::error_code code;
  if (std::filesystem::is_regular_file(layout.root / name, code)) return true;
  findings.error(
      "missing-file", name, "the file is missing",
      fmt::format("format {} lists its episodes and tasks in JSON lines", layout.info.version_text),
      "restore the file, or download the dataset again");
  return false;
}

void read_task(const Json& json, Layout& layout) {
  const int64_t index = json_integer(required(json, "task_index"), "task_index");
  std::string text = text_of(required(json, "task"), "task");
  LS_CHECK(index >= 0 && index <= kMaxTaskIndex, DataError, "task_index is {}", index);
  const auto [slot, inserted] = layout.tasks.emplace(index, text);
  LS_CHECK(inserted || slot->second == text, DataError, "task_index {} has two texts", index);
}

void add_files(Layout& layout, EpisodeRecord& episode) {
  std::map<std::string, TemplateValue> values = {
      {"episode_index", episode.index}, {"episode_chunk", episode.index / layout.info.chunks_size}};
  episode.spans.resize(layout.info.cameras.size());
  if (episode.length == 0) return;
  episode.data_file = static_cast<int64_t>(layout.data_files.size());
  layout.data_files.push_back({fill_template(layout.info.data_path, values), true});
  for (size_t c = 0; c < layout.info.cameras.size(); ++c) {
    if (!layout.info.cameras[c].is_video) continue;
    values["video_key"] = layout.info.cameras[c].name;
    episode.spans[c].file = static_cast<int64_t>(layout.video_files.size());
    layout.video_files.push_back({fill_template(layout.info.video_path, values), c, true});
  }
}

EpisodeRecord read_episode(const Json& json) {
  EpisodeRecord episode;
  episode.index = json_integer(required(json, "episode_index"), "episode_index");
  episode.length = json_integer(required(json, "length"), "length");
  LS_CHECK(episode.index >= 0 && episode.length >= 0, DataError, "episode_index {} with length {}",
           episode.index, episode.length);
  const auto tasks = json.find("tasks");
  if (tasks != json.end() && tasks->is_array()) {
    episode.has_tasks = true;
    for (const Json& task : *tasks) episode.tasks.push_back(text_of(task, "tasks"));
  }
  return episode;
}

}  // namespace

bool read_layout_v2(Layout& layout, Findings& findings) {
  const bool has_tasks = present(layout, "meta/tasks.jsonl", findings);
  const bool has_episodes = present(layout, "meta/episodes.jsonl", findings);
  bool readable = has_tasks && has_episodes;
  if (has_tasks) {
    readable = read_json_lines(layout.root / "meta/tasks.jsonl", "meta/tasks.jsonl", findings,
                               [&](int64_t, const Json& json) { read_task(json, layout); }) &&
               readable;
  }
  if (has_episodes) {
    readable = read_json_lines(layout.root / "meta/episodes.jsonl", "meta/episodes.jsonl", findings,
                               [&](int64_t, const Json& json) {
                                 EpisodeRecord episode = read_episode(json);
                                 add_files(layout, episode);
                                 layout.episodes.push_back(std::move(episode));
                               }) &&
               readable;
  }
  return readable;
}

}  // namespace longship::data::lerobot
