#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "data/lerobot/write/write_files.h"
#include "io/parquet_write.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;

// Columns of the new tables: every feature but videos, in the order of info.json, and what LeRobot
// itself needs.
std::vector<std::string> columns_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const Feature& feature : plan.info().features) {
    if (feature.kind != FeatureKind::kVideo) names.push_back(feature.name);
  }
  for (const char* own : {"timestamp", "frame_index", "episode_index", "index", "task_index"}) {
    const bool listed = std::find(names.begin(), names.end(), own) != names.end();
    // The others are numbered anew and need no source.
    const bool known = own != std::string_view("timestamp") || plan.options.timestamps ||
                       !plan.sources.front()->opened.table.timestamp.empty();
    if (!listed && known) names.emplace_back(own);
  }
  return names;
}

/// The rows of an episode inside its data file, in their right order.
std::vector<int64_t> file_rows(const Source& source, const EpisodeRecord& record, size_t& file) {
  const Table& table = source.opened.table;
  std::vector<int64_t> rows(static_cast<size_t>(record.length));
  std::iota(rows.begin(), rows.end(), record.row_begin);
  if (!source.file_row.empty()) {
    for (int64_t& row : rows) row = source.file_row[static_cast<size_t>(row)];
  }
  const auto next =
      std::upper_bound(table.file_begin.begin(), table.file_begin.end() - 1, rows.front());
  file = static_cast<size_t>(next - table.file_begin.begin() - 1);
  for (int64_t& row : rows) {
    LS_CHECK(row >= table.file_begin[file] && row < table.file_begin[file + 1], DataError,
             "episode {}: its rows lie in several data files", record.index);
    row -= table.file_begin[file];
  }
  return rows;
}

std::vector<io::ParquetRowCopier::Replacement> numbers_of(const Plan& plan,
                                                          const PlannedEpisode& episode,
                                                          int64_t number) {
  const EpisodeRecord& record = plan.record(episode);
  const Table& table = plan.sources[episode.source]->opened.table;
  const auto n = static_cast<size_t>(record.length);
  std::vector<int64_t> own(n, number), index(n), frame(n), task(n);
  for (size_t k = 0; k < n; ++k) {
    index[k] = episode.first_row + static_cast<int64_t>(k);
    frame[k] = static_cast<int64_t>(k);
    const int64_t old = table.task_index[static_cast<size_t>(record.row_begin) + k];
    task[k] = plan.task_index[episode.source].at(old);
  }
  std::vector<io::ParquetRowCopier::Replacement> out = {{"episode_index", std::move(own)},
                                                        {"index", std::move(index)},
                                                        {"frame_index", std::move(frame)},
                                                        {"task_index", std::move(task)}};
  if (plan.options.timestamps) {
    std::vector<float> time(n);
    for (size_t k = 0; k < n; ++k) {
      time[k] = static_cast<float>(static_cast<double>(k) / plan.info().fps);
    }
    out.push_back({"timestamp", std::move(time)});
  }
  return out;
}

/// Pictures that the tables name by a path go along under the same path.
void copy_pictures(const fs::path& target, const Plan& plan, const PlannedEpisode& episode) {
  const Source& source = *plan.sources[episode.source];
  const EpisodeRecord& record = plan.record(episode);
  const std::vector<CameraInfo>& cameras = source.opened.layout.info.cameras;
  for (size_t camera = 0; camera < cameras.size(); ++camera) {
    if (cameras[camera].is_video) continue;
    for (int64_t row = record.row_begin; row < record.row_end; ++row) {
      const int64_t in_file =
          source.file_row.empty() ? row : source.file_row[static_cast<size_t>(row)];
      const io::StoredPicture picture = source.opened.images->stored(camera, in_file);
      if (!picture.bytes.empty()) continue;
      const fs::path to = target / picture.path;
      fs::create_directories(to.parent_path());
      LS_CHECK(!fs::exists(to), DataError,
               "{}: two datasets name a picture by this path; they cannot be put together",
               picture.path);
      fs::copy_file(source.opened.layout.root / picture.path, to);
    }
  }
}

}  // namespace

void write_rows(const fs::path& target, Plan& plan, Progress& progress) {
  const std::vector<std::string> columns = columns_of(plan);
  std::unique_ptr<io::ParquetRowCopier> out;
  FileNumber number;
  int64_t done = 0;
  for (size_t e = 0; e < plan.episodes.size(); ++e) {
    PlannedEpisode& episode = plan.episodes[e];
    const Source& source = *plan.sources[episode.source];
    const EpisodeRecord& record = plan.record(episode);
    size_t file = 0;
    const std::vector<int64_t> rows = file_rows(source, record, file);
    const fs::path from = source.opened.layout.root / source.opened.layout.data_files[file].path;
    std::error_code code;
    const auto file_rows_total =
        source.opened.table.file_begin[file + 1] - source.opened.table.file_begin[file];
    const double share = static_cast<double>(record.length) /
                         static_cast<double>(std::max<int64_t>(1, file_rows_total));
    const auto expected =
        static_cast<int64_t>(share * static_cast<double>(fs::file_size(from, code)));
    if (out != nullptr &&
        static_cast<int64_t>(out->bytes_written()) + expected > plan.options.data_file_bytes) {
      out->close();
      out.reset();
      number.next(plan.options.files_per_chunk);
    }
    if (out == nullptr) {
      const fs::path path = target / fill_template(plan.data_path, {{"chunk_index", number.chunk},
                                                                    {"file_index", number.file}});
      fs::create_directories(path.parent_path());
      out = std::make_unique<io::ParquetRowCopier>(path, columns);
    }
    episode.data_chunk = number.chunk;
    episode.data_file = number.file;
    out->append(from, rows, numbers_of(plan, episode, static_cast<int64_t>(e)));
    copy_pictures(target, plan, episode);
    done += record.length;
    progress.update(done);
  }
  out->close();
}

}  // namespace longship::data::lerobot
