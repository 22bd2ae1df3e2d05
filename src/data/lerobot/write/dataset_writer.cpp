#include "data/lerobot/write/dataset_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/lerobot/write/write_files.h"
#include "data/lerobot/write/write_meta.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;

int64_t num_videos(const Plan& plan) {
  return std::count_if(plan.info().cameras.begin(), plan.info().cameras.end(),
                       [](const CameraInfo& camera) { return camera.is_video; });
}

// Two times the bytes of the sources is more than the new dataset needs.
void check_space(const fs::path& target, const Plan& plan) {
  uint64_t bytes = 0;
  std::error_code code;
  for (const Source* source : plan.sources) {
    const Layout& layout = source->opened.layout;
    for (const DataFile& file : layout.data_files)
      bytes += fs::file_size(layout.root / file.path, code);
    for (const VideoFile& file : layout.video_files) {
      bytes += fs::file_size(layout.root / file.path, code);
    }
  }
  const uint64_t free =
      free_bytes(target.parent_path().empty() ? fs::path(".") : target.parent_path());
  if (free < bytes) {
    log::warn("{}: {} MiB are free where the new dataset goes, the sources take {} MiB",
              target.string(), free >> 20, bytes >> 20);
  }
}

// Nothing appears that the program itself would refuse.
void verify(const fs::path& root, const Plan& plan) {
  Findings findings;
  const std::optional<Opened> opened = inspect(root, {}, findings);
  findings.throw_if_errors(root);
  int64_t frames = 0;
  for (const EpisodeRecord& episode : opened->layout.episodes) frames += episode.length;
  LS_CHECK(frames == plan.num_frames, InternalError, "{}: {} frames were written, {} read back",
           root.string(), plan.num_frames, frames);
}

// Told before the sources are read, which may take a while.
void refuse_existing(const fs::path& target) {
  std::error_code code;
  LS_CHECK(!fs::exists(fs::symlink_status(target, code)), DataError,
           "{}: exists already; give the new dataset a folder that does not", target.string());
}

std::vector<size_t> all_positions(const Source& source) {
  std::vector<size_t> positions(source.opened.layout.episodes.size());
  std::iota(positions.begin(), positions.end(), size_t{0});
  return positions;
}

}  // namespace

WriteSummary write_dataset(const fs::path& target, std::span<const Selection> selections,
                           const WriteOptions& options) {
  Plan plan = make_plan(selections, options);
  check_space(target, plan);
  AtomicFolder folder(target, ExitCode::kData);
  {
    Progress progress("tables", plan.num_frames, "frame");
    write_rows(folder.path(), plan, progress);
  }
  {
    Progress progress("videos", plan.num_frames * num_videos(plan), "frame");
    write_videos(folder.path(), plan, progress);
  }
  write_metadata(folder.path(), plan, compute_written_stats(plan));
  verify(folder.path(), plan);
  folder.commit();
  WriteSummary summary;
  summary.num_episodes = static_cast<int64_t>(plan.episodes.size());
  summary.num_frames = plan.num_frames;
  std::set<std::pair<int64_t, int64_t>> data;
  std::set<std::tuple<size_t, int64_t, int64_t>> videos;
  for (const PlannedEpisode& episode : plan.episodes) {
    data.emplace(episode.data_chunk, episode.data_file);
    for (size_t c = 0; c < episode.spans.size(); ++c) {
      if (!plan.info().cameras[c].is_video) continue;
      videos.emplace(c, episode.spans[c].chunk, episode.spans[c].file);
    }
  }
  std::set<int64_t> tasks;
  for (const auto& map : plan.task_index) {
    for (const auto& [old, number] : map) tasks.insert(number);
  }
  summary.num_tasks = static_cast<int64_t>(tasks.size());
  summary.num_data_files = static_cast<int64_t>(data.size());
  summary.num_video_files = static_cast<int64_t>(videos.size());
  return summary;
}

WriteSummary convert_dataset(const fs::path& source, const fs::path& target,
                             const WriteOptions& options) {
  refuse_existing(target);
  const std::unique_ptr<Source> opened = open_source(source);
  const Selection all{opened.get(), all_positions(*opened)};
  return write_dataset(target, std::span(&all, 1), options);
}

WriteSummary split_dataset(const fs::path& source, const fs::path& target,
                           const std::vector<int64_t>& episodes, const WriteOptions& options) {
  refuse_existing(target);
  const std::unique_ptr<Source> opened = open_source(source);
  const std::vector<EpisodeRecord>& records = opened->opened.layout.episodes;
  const std::set<int64_t> wanted(episodes.begin(), episodes.end());
  if (wanted.size() != episodes.size()) {
    log::warn("split: {} episodes are named more than once and taken once",
              episodes.size() - wanted.size());
  }
  Selection selection{opened.get(), {}};
  for (const int64_t index : wanted) {
    // Records are sorted by their index.
    const auto found = std::lower_bound(records.begin(), records.end(), index,
                                        [](const EpisodeRecord& record, int64_t wanted_index) {
                                          return record.index < wanted_index;
                                        });
    LS_CHECK(found != records.end() && found->index == index, ConfigError,
             "--episodes: there is no episode {} in {}; it has {} episodes, {} .. {}", index,
             source.string(), records.size(), records.front().index, records.back().index);
    LS_CHECK(found->length > 0, ConfigError, "--episodes: episode {} of {} is empty", index,
             source.string());
    selection.positions.push_back(static_cast<size_t>(found - records.begin()));
  }
  WriteOptions own = options;
  own.keep_all_tasks = false;
  return write_dataset(target, std::span(&selection, 1), own);
}

WriteSummary merge_datasets(std::span<const fs::path> sources, const fs::path& target,
                            const WriteOptions& options) {
  refuse_existing(target);
  std::vector<std::unique_ptr<Source>> opened;
  std::vector<Selection> selections;
  for (const fs::path& path : sources) {
    opened.push_back(open_source(path));
    selections.push_back({opened.back().get(), all_positions(*opened.back())});
  }
  return write_dataset(target, selections, options);
}

}  // namespace longship::data::lerobot
