#include "data/lerobot/write/write_meta.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/fs.h"
#include "io/parquet_write.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// pandas keeps the texts as the index of the table; LeRobot looks for them there.
constexpr const char* kPandasTasks =
    R"({"index_columns": ["__index_level_0__"], "column_indexes": [{"name": null, "field_name": null, )"
    R"("pandas_type": "unicode", "numpy_type": "object", "metadata": {"encoding": "UTF-8"}}], )"
    R"("columns": [{"name": "task_index", "field_name": "task_index", "pandas_type": "int64", )"
    R"("numpy_type": "int64", "metadata": null}, {"name": null, "field_name": "__index_level_0__", )"
    R"("pandas_type": "unicode", "numpy_type": "object", "metadata": null}], )"
    R"("creator": {"library": "longship", "version": "1"}, "pandas_version": "2.0.0"})";

void write_tasks(const fs::path& target, const Plan& plan) {
  std::set<int64_t> used;
  for (const auto& map : plan.task_index) {
    for (const auto& [old, number] : map) used.insert(number);
  }
  const std::vector<int64_t> index(used.begin(), used.end());
  std::vector<std::string> texts;
  for (const int64_t i : index) texts.push_back(plan.tasks[static_cast<size_t>(i)]);
  const std::vector<io::WriteColumn> columns = {{"task_index", index},
                                                {"__index_level_0__", texts}};
  io::write_parquet(target / "meta/tasks.parquet", columns, {{"pandas", kPandasTasks}});
}

// In the order in which the rows name them.
std::vector<std::string> tasks_of(const Plan& plan, const PlannedEpisode& episode) {
  const EpisodeRecord& record = plan.record(episode);
  const Table& table = plan.sources[episode.source]->opened.table;
  std::vector<std::string> tasks;
  for (int64_t row = record.row_begin; row < record.row_end; ++row) {
    const int64_t old = table.task_index[static_cast<size_t>(row)];
    const std::string& text =
        plan.tasks[static_cast<size_t>(plan.task_index[episode.source].at(old))];
    if (std::find(tasks.begin(), tasks.end(), text) == tasks.end()) tasks.push_back(text);
  }
  return tasks;
}

/// One statistic of one feature over episodes; empty lists where it is not known.
void add_stat(std::vector<io::WriteColumn>& columns, const std::string& name, int depth,
              const std::vector<const FullStats*>& stats,
              const std::vector<double>& (*part)(const FullStats&)) {
  io::DoubleLists lists;
  lists.depth = depth;
  bool any = false;
  for (const FullStats* episode : stats) {
    lists.rows.push_back(episode == nullptr ? std::vector<double>{} : part(*episode));
    any = any || !lists.rows.back().empty();
  }
  if (any) columns.push_back({name, std::move(lists)});
}

void add_stats(std::vector<io::WriteColumn>& columns, const Plan& plan, const WrittenStats& written,
               size_t begin, size_t end) {
  for (const Feature& feature : plan.info().features) {
    std::vector<const FullStats*> stats;
    io::Int64Lists count;
    bool any = false;
    for (size_t e = begin; e < end; ++e) {
      const auto found = written.per_episode[e].find(feature.name);
      stats.push_back(found == written.per_episode[e].end() ? nullptr : &found->second);
      any = any || stats.back() != nullptr;
      count.push_back({stats.back() == nullptr ? 0 : stats.back()->count});
    }
    if (!any) continue;
    const std::string prefix = "stats/" + feature.name + "/";
    const int depth = feature.kind == FeatureKind::kNumeric ? 1 : 3;
    using Part = const std::vector<double>& (*)(const FullStats&);
    const std::pair<const char*, Part> parts[] = {
        {"min", [](const FullStats& s) -> const std::vector<double>& { return s.min; }},
        {"max", [](const FullStats& s) -> const std::vector<double>& { return s.max; }},
        {"mean", [](const FullStats& s) -> const std::vector<double>& { return s.mean; }},
        {"std", [](const FullStats& s) -> const std::vector<double>& { return s.std; }}};
    for (const auto& [name, part] : parts) add_stat(columns, prefix + name, depth, stats, part);
    columns.push_back({prefix + "count", std::move(count)});
    const Part quantiles[] = {
        [](const FullStats& s) -> const std::vector<double>& { return s.quantiles[0]; },
        [](const FullStats& s) -> const std::vector<double>& { return s.quantiles[1]; },
        [](const FullStats& s) -> const std::vector<double>& { return s.quantiles[2]; },
        [](const FullStats& s) -> const std::vector<double>& { return s.quantiles[3]; },
        [](const FullStats& s) -> const std::vector<double>& { return s.quantiles[4]; }};
    for (size_t q = 0; q < kQuantileNames.size(); ++q) {
      add_stat(columns, prefix + kQuantileNames[q], depth, stats, quantiles[q]);
    }
  }
}

void write_episode_table(const fs::path& target, const Plan& plan, const WrittenStats& stats,
                         size_t begin, size_t end, const FileNumber& number) {
  std::vector<int64_t> index, length, chunk, file, from, to;
  io::StringLists tasks;
  for (size_t e = begin; e < end; ++e) {
    const PlannedEpisode& episode = plan.episodes[e];
    index.push_back(static_cast<int64_t>(e));
    length.push_back(plan.record(episode).length);
    chunk.push_back(episode.data_chunk);
    file.push_back(episode.data_file);
    from.push_back(episode.first_row);
    to.push_back(episode.first_row + length.back());
    tasks.push_back(tasks_of(plan, episode));
  }
  std::vector<io::WriteColumn> columns = {{"episode_index", index},  {"tasks", tasks},
                                          {"length", length},        {"data/chunk_index", chunk},
                                          {"data/file_index", file}, {"dataset_from_index", from},
                                          {"dataset_to_index", to}};
  for (size_t c = 0; c < plan.info().cameras.size(); ++c) {
    if (!plan.info().cameras[c].is_video) continue;
    std::vector<int64_t> video_chunk, video_file;
    std::vector<double> from_s, to_s;
    for (size_t e = begin; e < end; ++e) {
      const PlacedSpan& span = plan.episodes[e].spans[c];
      video_chunk.push_back(span.chunk);
      video_file.push_back(span.file);
      from_s.push_back(span.from_s);
      to_s.push_back(span.to_s);
    }
    const std::string prefix = "videos/" + plan.info().cameras[c].name + "/";
    columns.push_back({prefix + "chunk_index", video_chunk});
    columns.push_back({prefix + "file_index", video_file});
    columns.push_back({prefix + "from_timestamp", from_s});
    columns.push_back({prefix + "to_timestamp", to_s});
  }
  add_stats(columns, plan, stats, begin, end);
  const size_t n = end - begin;
  columns.push_back({"meta/episodes/chunk_index", std::vector<int64_t>(n, number.chunk)});
  columns.push_back({"meta/episodes/file_index", std::vector<int64_t>(n, number.file)});
  const fs::path path = target / fmt::format("meta/episodes/chunk-{:03d}/file-{:03d}.parquet",
                                             number.chunk, number.file);
  fs::create_directories(path.parent_path());
  io::write_parquet(path, columns);
}

void write_episodes(const fs::path& target, const Plan& plan, const WrittenStats& stats) {
  // About 8 kB of statistics an episode: far below the size limit of a file.
  constexpr size_t kEpisodesPerFile = 10000;
  FileNumber number;
  for (size_t begin = 0; begin < plan.episodes.size(); begin += kEpisodesPerFile) {
    const size_t end = std::min(begin + kEpisodesPerFile, plan.episodes.size());
    write_episode_table(target, plan, stats, begin, end, number);
    number.next(plan.options.files_per_chunk);
  }
}

void write_stats(const fs::path& target, const Plan& plan, const WrittenStats& stats) {
  Json all = Json::object();
  for (const Feature& feature : plan.info().features) {
    const auto found = stats.total.find(feature.name);
    if (found == stats.total.end()) continue;
    all[feature.name] = stats_entry(found->second, feature.kind == FeatureKind::kNumeric ? 1 : 3);
  }
  write_file_atomic(target / "meta/stats.json", all.dump(4) + "\n");
}

void write_info(const fs::path& target, const Plan& plan) {
  const Json& old = plan.sources.front()->info;
  const auto num_episodes = static_cast<int64_t>(plan.episodes.size());
  std::set<int64_t> tasks;
  for (const auto& map : plan.task_index) {
    for (const auto& [index, number] : map) tasks.insert(number);
  }
  const double fps = plan.info().fps;
  Json info;
  info["codebase_version"] = "v3.0";
  info["robot_type"] = old.contains("robot_type") ? old["robot_type"] : Json(nullptr);
  info["total_episodes"] = num_episodes;
  info["total_frames"] = plan.num_frames;
  info["total_tasks"] = tasks.size();
  info["chunks_size"] = plan.options.files_per_chunk;
  info["data_files_size_in_mb"] = std::max<int64_t>(1, plan.options.data_file_bytes >> 20);
  info["video_files_size_in_mb"] = std::max<int64_t>(1, plan.options.video_file_bytes >> 20);
  if (fps == std::floor(fps) && fps < 1e9) {
    info["fps"] = static_cast<int64_t>(fps);
  } else {
    info["fps"] = fps;
  }
  info["splits"] = {{"train", fmt::format("0:{}", num_episodes)}};
  info["data_path"] = plan.data_path;
  const bool has_video = std::any_of(plan.info().cameras.begin(), plan.info().cameras.end(),
                                     [](const CameraInfo& camera) { return camera.is_video; });
  info["video_path"] = has_video ? Json(plan.video_path) : Json(nullptr);
  info["features"] = old["features"];
  // What other programs noted down stays; counters of the old layout do not.
  for (const auto& [key, value] : old.items()) {
    if (!info.contains(key) && key != "total_videos" && key != "total_chunks") info[key] = value;
  }
  write_file_atomic(target / "meta/info.json", info.dump(4) + "\n");
}

}  // namespace

void write_metadata(const fs::path& target, const Plan& plan, const WrittenStats& stats) {
  fs::create_directories(target / "meta");
  write_tasks(target, plan);
  write_episodes(target, plan, stats);
  write_stats(target, plan, stats);
  write_info(target, plan);
}

}  // namespace longship::data::lerobot
