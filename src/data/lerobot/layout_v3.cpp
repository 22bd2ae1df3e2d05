// Format v3.0: tasks and episodes in parquet, many episodes per table and per video.

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/lerobot/layout.h"
#include "io/parquet.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;
using io::ParquetTable;

// Parquet files below a folder, relative to the root, in numeric order of chunk and file.
std::vector<std::string> list_tables(const fs::path& root, const char* folder) {
  std::vector<std::string> found;
  std::error_code code;
  for (fs::recursive_directory_iterator it(root / folder, code), end; !code && it != end;
       it.increment(code)) {
    std::error_code ignored;
    if (it->path().extension() == ".parquet" && it->is_regular_file(ignored)) {
      found.push_back(it->path().lexically_relative(root).generic_string());
    }
  }
  return found;
}

// file-1000 comes after file-999, though its text comes before.
bool table_before(const std::string& a, const std::string& b) {
  const fs::path path_a(a), path_b(b);
  const auto key = [](const fs::path& path) {
    const std::string parent = path.parent_path().generic_string();
    const std::string name = path.filename().generic_string();
    return std::tuple(parent.size(), parent, name.size(), name);
  };
  return key(path_a) < key(path_b);
}

// Which column holds the text: `task`, else what pandas marks as the index, else the only string
// column.
std::string task_column(const ParquetTable& table) {
  const std::vector<std::string> strings = table.string_column_names();
  const auto is_string = [&](const std::string& name) {
    return std::find(strings.begin(), strings.end(), name) != strings.end();
  };
  if (is_string("task")) return "task";
  const std::string pandas = table.pandas_metadata();
  if (!pandas.empty()) {
    const auto json = parse_json_text(pandas, table.path().string() + " (pandas metadata)");
    const auto index = json.find("index_columns");
    if (index != json.end() && index->is_array()) {
      for (const auto& item : *index) {
        if (item.is_string() && is_string(item.get<std::string>())) return item.get<std::string>();
      }
    }
  }
  LS_CHECK(strings.size() == 1, DataError,
           "no column holds the task texts for sure: columns are {}, of which {} are strings",
           join(table.column_names(), ", "), strings.size());
  return strings.front();
}

bool read_tasks(Layout& layout, Findings& findings) {
  const char* place = "meta/tasks.parquet";
  std::error_code code;
  if (!fs::is_regular_file(layout.root / place, code)) {
    findings.error("missing-file", place, "the file is missing",
                   "format v3.0 lists its tasks in this table",
                   "restore the file, or download the dataset again");
    return false;
  }
  try {
    const ParquetTable table = ParquetTable::open(layout.root / place);
    const std::vector<int64_t> index = table.int64("task_index");
    const std::vector<std::string> text = table.strings(task_column(table));
    for (size_t i = 0; i < index.size(); ++i) {
      LS_CHECK(index[i] >= 0 && index[i] <= kMaxTaskIndex, DataError, "task_index is {} in row {}",
               index[i], i);
      const auto [slot, inserted] = layout.tasks.emplace(index[i], text[i]);
      LS_CHECK(inserted || slot->second == text[i], DataError, "task_index {} has two texts",
               index[i]);
    }
    return true;
  } catch (const Error& error) {
    findings.error("tasks", place, error.what());
    return false;
  }
}

/// Turns relative paths into numbers, one per distinct path and owner (the camera of a video).
class FileNumbers {
 public:
  int64_t of(const std::string& path, std::vector<std::string>& paths, size_t owner = 0) {
    const auto [slot, inserted] =
        number_.emplace(std::pair(owner, path), static_cast<int64_t>(paths.size()));
    if (inserted) paths.push_back(path);
    return slot->second;
  }

 private:
  std::map<std::pair<size_t, std::string>, int64_t> number_;
};

struct FileTables {
  std::vector<std::string> data_paths, video_paths;
  std::vector<size_t> video_cameras;
  FileNumbers data, video;
};

void read_spans(const ParquetTable& table, Layout& layout, std::vector<EpisodeRecord>& episodes,
                FileTables& files) {
  for (size_t c = 0; c < layout.info.cameras.size(); ++c) {
    const CameraInfo& camera = layout.info.cameras[c];
    if (!camera.is_video) continue;
    const std::string prefix = "videos/" + camera.name + "/";
    const std::vector<int64_t> chunk = table.int64(prefix + "chunk_index");
    const std::vector<int64_t> file = table.int64(prefix + "file_index");
    const std::vector<double> from = table.float64(prefix + "from_timestamp");
    const std::vector<double> to = table.float64(prefix + "to_timestamp");
    for (size_t i = 0; i < episodes.size(); ++i) {
      if (episodes[i].length == 0) continue;
      const std::string path = fill_template(
          layout.info.video_path,
          {{"video_key", camera.name}, {"chunk_index", chunk[i]}, {"file_index", file[i]}});
      VideoSpan& span = episodes[i].spans[c];
      span.file = files.video.of(path, files.video_paths, c);
      if (files.video_cameras.size() < files.video_paths.size()) files.video_cameras.push_back(c);
      span.from_s = from[i];
      span.to_s = to[i];
    }
  }
}

void read_episode_table(const std::string& path, Layout& layout, FileTables& files) {
  const ParquetTable table = ParquetTable::open(layout.root / path);
  const std::vector<int64_t> index = table.int64("episode_index");
  const std::vector<int64_t> length = table.int64("length");
  const std::vector<int64_t> from = table.int64("dataset_from_index");
  const std::vector<int64_t> to = table.int64("dataset_to_index");
  const std::vector<int64_t> chunk = table.int64("data/chunk_index");
  const std::vector<int64_t> file = table.int64("data/file_index");
  std::vector<EpisodeRecord> episodes(index.size());
  for (size_t i = 0; i < episodes.size(); ++i) {
    EpisodeRecord& episode = episodes[i];
    episode.index = index[i];
    episode.length = length[i];
    episode.row_begin = from[i];
    episode.row_end = to[i];
    episode.spans.resize(layout.info.cameras.size());
    if (episode.length == 0) {
      episode.row_begin = episode.row_end = 0;
      continue;
    }
    episode.data_file = files.data.of(
        fill_template(layout.info.data_path, {{"chunk_index", chunk[i]}, {"file_index", file[i]}}),
        files.data_paths);
  }
  if (table.has("tasks")) {
    std::vector<std::vector<std::string>> tasks = table.string_lists("tasks");
    for (size_t i = 0; i < episodes.size(); ++i) {
      episodes[i].has_tasks = true;
      episodes[i].tasks = std::move(tasks[i]);
    }
  }
  read_spans(table, layout, episodes, files);
  layout.episodes.insert(layout.episodes.end(), episodes.begin(), episodes.end());
}

// Rows are counted over all tables of the folder, also those that no episode claims.
void number_data_files(Layout& layout, FileTables& files) {
  const std::vector<std::string> claimed = files.data_paths;
  for (const std::string& path : list_tables(layout.root, "data")) {
    files.data.of(path, files.data_paths);
  }
  std::vector<std::string> sorted = files.data_paths;
  std::sort(sorted.begin(), sorted.end(), table_before);
  std::map<std::string, int64_t> position;
  for (const std::string& path : sorted) {
    position[path] = static_cast<int64_t>(layout.data_files.size());
    layout.data_files.push_back({path, true});
  }
  for (EpisodeRecord& episode : layout.episodes) {
    if (episode.data_file >= 0) {
      episode.data_file = position[claimed[static_cast<size_t>(episode.data_file)]];
    }
  }
  for (size_t i = 0; i < files.video_paths.size(); ++i) {
    layout.video_files.push_back({files.video_paths[i], files.video_cameras[i], true});
  }
}

}  // namespace

bool read_layout_v3(Layout& layout, Findings& findings) {
  bool readable = read_tasks(layout, findings);
  std::vector<std::string> tables = list_tables(layout.root, "meta/episodes");
  std::sort(tables.begin(), tables.end(), table_before);
  if (tables.empty()) {
    findings.error("missing-file", "meta/episodes", "there is no table below this folder",
                   "format v3.0 lists its episodes in meta/episodes/chunk-000/file-000.parquet",
                   "restore the folder, or download the dataset again");
    readable = false;
  }
  FileTables files;
  for (const std::string& path : tables) {
    try {
      read_episode_table(path, layout, files);
    } catch (const Error& error) {
      findings.error("episode-table", path, error.what());
      readable = false;
    }
  }
  if (readable) number_data_files(layout, files);
  return readable;
}

}  // namespace longship::data::lerobot
