#pragma once
// The large files of a new v3.0 dataset: tables and videos.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/progress.h"
#include "data/lerobot/write/plan.h"
#include "data/stats_pass.h"

namespace longship::data::lerobot {

/// Statistics of a new dataset.
struct WrittenStats {
  std::vector<std::map<std::string, FullStats>> per_episode;  // as Plan::episodes
  std::map<std::string, FullStats> total;
};

/// Copies the rows of all episodes, one row group each, with episode_index, index and task_index
/// numbered anew. Sets data_chunk and data_file of the episodes. `advance` is called with the
/// number of frames done.
void write_rows(const std::filesystem::path& target, Plan& plan, Progress& progress);

/// Puts the frames of every camera together, stream by stream. Sets the spans of the episodes.
/// A stream that cannot be cut or joined without encoding stays a file of its own, copied whole.
void write_videos(const std::filesystem::path& target, Plan& plan, Progress& progress);

/// Statistics of numeric columns from the rows, exact; of cameras from what the sources store, or
/// from every picture with WriteOptions::pixels.
WrittenStats compute_written_stats(const Plan& plan);

/// Bytes left until the next file begins, and its number.
struct FileNumber {
  int64_t chunk = 0, file = 0;
  void next(int64_t files_per_chunk) {
    if (++file < files_per_chunk) return;
    file = 0;
    ++chunk;
  }
};

}  // namespace longship::data::lerobot
