#pragma once
// What a new dataset is made of: episodes of sources, their new numbers, one task list.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/lerobot/opened.h"
#include "data/stats_pass.h"
#include "io/video.h"

namespace longship::data::lerobot {

/// Statistics of one camera over one episode, as the source stores them. std is empty where it is
/// not to be trusted.
using CameraStats = std::map<int64_t, std::map<std::string, FullStats>>;  // by episode_index

/// A dataset that episodes are taken from.
struct Source {
  Opened opened;
  nlohmann::ordered_json info;  // meta/info.json
  /// Row of the data files for each row of opened.table; empty when they are the same.
  std::vector<int64_t> file_row;
  CameraStats camera_stats;
};

/// Opens a dataset that is free of errors. Throws DataError with all of them otherwise. Warnings go
/// to the log.
std::unique_ptr<Source> open_source(const std::filesystem::path& root);

/// What stores of camera statistics hold per episode: meta/episodes_stats.jsonl of v2.1, the
/// episode tables of v3.0. Unreadable ones are left out.
CameraStats read_camera_stats(const Layout& layout);

/// Where the frames of an episode stand in a new video.
struct PlacedSpan {
  int64_t chunk = 0, file = 0;
  double from_s = 0, to_s = 0;
};

struct PlannedEpisode {
  size_t source = 0;      // into Plan::sources
  size_t position = 0;    // into its layout's episodes
  int64_t first_row = 0;  // in the new dataset
  // Filled while writing.
  int64_t data_chunk = 0, data_file = 0;
  std::vector<PlacedSpan> spans;  // per camera
};

struct WriteOptions {
  int64_t data_file_bytes = int64_t{100} << 20;   // a new table begins beyond this
  int64_t video_file_bytes = int64_t{200} << 20;  // likewise, per camera
  int64_t files_per_chunk = 1000;
  bool keep_all_tasks = true;  // false: only tasks that rows use, numbered anew
  bool pixels = false;         // statistics of cameras from every picture
  bool timestamps = false;     // frame k gets the timestamp k / fps in place of its own
};

struct Plan {
  std::vector<const Source*> sources;
  std::vector<PlannedEpisode> episodes;
  std::vector<std::string> tasks;                      // by new task_index
  std::vector<std::map<int64_t, int64_t>> task_index;  // per source: old -> new
  io::Rational rate;
  std::string data_path, video_path;  // templates of v3.0
  WriteOptions options;
  int64_t num_frames = 0;

  const Layout& layout(size_t source) const { return sources[source]->opened.layout; }
  const EpisodeRecord& record(const PlannedEpisode& episode) const {
    return layout(episode.source).episodes[episode.position];
  }
  /// Cameras and features are those of the first source.
  const Info& info() const { return sources.front()->opened.layout.info; }
};

/// Which episodes of a source, by position. Empty ones are left out.
struct Selection {
  const Source* source = nullptr;
  std::vector<size_t> positions;
};

/// Numbers episodes and rows, unites task lists. Throws one DataError with every difference when
/// the sources do not fit each other: rate, features, robot type.
Plan make_plan(std::span<const Selection> selections, const WriteOptions& options);

}  // namespace longship::data::lerobot
