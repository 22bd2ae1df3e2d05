// Tables, statistics, files and texts, read to the last byte.

#include "data/lerobot/check_deep.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "io/parquet.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;

// One reader for each kind of column; a column of another kind is read as nothing.
void read_whole(const io::ParquetTable& table, const std::string& name) {
  if (table.is_numeric(name)) {
    table.numeric(name);
  } else if (table.is_string(name)) {
    table.strings(name);
  } else if (table.is_picture(name)) {
    table.pictures(name);
  }
}

void check_table(const Layout& layout, size_t file, Findings& findings) {
  static const std::set<std::string> kOwn = {"timestamp", "frame_index", "episode_index", "index",
                                             "task_index"};
  const std::string& path = layout.data_files[file].path;
  try {
    const io::ParquetTable table = io::ParquetTable::open(layout.root / path);
    for (const std::string& name : table.column_names()) {
      const auto feature = std::find_if(layout.info.features.begin(), layout.info.features.end(),
                                        [&](const Feature& f) { return f.name == name; });
      const bool listed = feature != layout.info.features.end();
      // Numeric features were read when the dataset was opened.
      if (listed && feature->kind == FeatureKind::kNumeric) continue;
      if (kOwn.contains(name)) continue;
      try {
        read_whole(table, name);
      } catch (const Error& error) {
        findings.error("column", fmt::format("{} column {}", path, name), error.what(),
                       "pages that decode", "restore the file");
      }
    }
  } catch (const Error&) {
    return;  // reported when the dataset was opened
  }
}

struct RowStats {
  double min = 0, max = 0, mean = 0, std = 0;
  int64_t count = 0;
};

std::vector<RowStats> stats_of_rows(const ColumnData& column) {
  const auto width = static_cast<size_t>(column.width);
  std::vector<RowStats> out(width);
  for (size_t d = 0; d < width; ++d) {
    RowStats& stats = out[d];
    double sum = 0, squares = 0;
    for (size_t i = d; i < column.values.size(); i += width) {
      const auto x = static_cast<double>(column.values[i]);
      if (!std::isfinite(x)) continue;
      stats.min = stats.count == 0 ? x : std::min(stats.min, x);
      stats.max = stats.count == 0 ? x : std::max(stats.max, x);
      sum += x;
      ++stats.count;
    }
    if (stats.count == 0) continue;
    stats.mean = sum / static_cast<double>(stats.count);
    for (size_t i = d; i < column.values.size(); i += width) {
      const double delta = static_cast<double>(column.values[i]) - stats.mean;
      if (std::isfinite(delta)) squares += delta * delta;
    }
    stats.std = std::sqrt(squares / static_cast<double>(stats.count));
  }
  return out;
}

struct Difference {
  const char* what = nullptr;
  double stored = 0, found = 0;
};

// Writers compute in float32 and from one picture or row in float64: a thousandth of the range is
// far beyond what rounding does.
Difference difference_of(const FeatureStats& stored, const RowStats& rows, size_t d) {
  const double scale = std::max({rows.max - rows.min, 1e-6 * std::abs(rows.max), 1e-12});
  const std::pair<const char*, const std::vector<double>*> parts[] = {
      {"min", &stored.min}, {"max", &stored.max}, {"mean", &stored.mean}, {"std", &stored.std}};
  const double found[] = {rows.min, rows.max, rows.mean, rows.std};
  for (size_t i = 0; i < 4; ++i) {
    if (d >= parts[i].second->size()) continue;
    const double value = (*parts[i].second)[d];
    if (!(std::abs(value - found[i]) <= 1e-3 * scale)) return {parts[i].first, value, found[i]};
  }
  for (const auto& [name, quantile] :
       {std::pair{"q01", &stored.q01}, std::pair{"q99", &stored.q99}}) {
    if (d >= quantile->size()) continue;
    const double value = (*quantile)[d];
    const double slack = 1e-3 * scale;
    if (!(value >= rows.min - slack)) return {name, value, rows.min};
    if (!(value <= rows.max + slack)) return {name, value, rows.max};
  }
  return {};
}

void compare_column(const Feature& feature, const FeatureStats& stored, const ColumnData& column,
                    Findings& findings) {
  const std::vector<RowStats> rows = stats_of_rows(column);
  for (size_t d = 0; d < rows.size(); ++d) {
    if (rows[d].count == 0) continue;
    const Difference difference = difference_of(stored, rows[d], d);
    if (difference.what == nullptr) continue;
    findings.warn(
        "stats-differ", fmt::format("{}[{}]", feature.name, d),
        fmt::format("{} of {} is {:.6g}, the rows say {:.6g}", difference.what, stored.source,
                    difference.stored, difference.found),
        "statistics of these rows",
        "longship dataset stats --out computes them, longship dataset repair writes a dataset with "
        "them");
    return;  // one line per feature
  }
}

void compare_camera(const std::string& camera, const FeatureStats& stored,
                    const CameraPixels& pixels, Findings& findings) {
  if (pixels.stats.num_pixels() == 0 || stored.mean.size() != 3) return;
  const FullStats found = pixels.stats.result(pixels.num_frames);
  for (size_t c = 0; c < 3; ++c) {
    // The library looks at some of the frames, at a reduced size.
    if (std::abs(stored.mean[c] - found.mean[c]) <= 0.1) continue;
    findings.warn("stats-differ", fmt::format("{} channel {}", camera, c),
                  fmt::format("mean of {} is {:.4g}, the pictures say {:.4g}", stored.source,
                              stored.mean[c], found.mean[c]),
                  "statistics of these pictures, from 0 to 1",
                  "longship dataset stats --pixels --out computes them");
    return;
  }
}

}  // namespace

void check_tables(const Opened& opened, int64_t threads, Findings& findings) {
  const Layout& layout = opened.layout;
  std::vector<Findings> parts(layout.data_files.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      if (layout.data_files[i].exists) check_table(layout, i, parts[i]);
    }
  };
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < std::min<int64_t>(threads, static_cast<int64_t>(parts.size())); ++i) {
    pool.emplace_back(work);
  }
  work();
  for (std::thread& thread : pool) thread.join();
  for (const Findings& part : parts) findings.append(part);
}

void check_stored_stats(const Opened& opened, const std::map<std::string, CameraPixels>& pixels,
                        Findings& findings) {
  // Rows that no episode owns, or that belong to no file, would speak for themselves only.
  int64_t claimed = 0;
  for (const EpisodeRecord& episode : opened.layout.episodes) {
    claimed += std::max<int64_t>(0, episode.length);
  }
  if (!opened.table.sound || claimed != opened.table.num_rows) return;
  for (const Feature& feature : opened.layout.info.features) {
    const auto stored = opened.stats.find(feature.name);
    if (stored == opened.stats.end()) continue;
    if (feature.kind == FeatureKind::kVideo || feature.kind == FeatureKind::kImage) {
      const auto found = pixels.find(feature.name);
      if (found != pixels.end()) {
        compare_camera(feature.name, stored->second, found->second, findings);
      }
      continue;
    }
    const auto column = opened.table.columns.find(feature.name);
    if (column == opened.table.columns.end() || !column->second.sound) continue;
    const size_t width = static_cast<size_t>(column->second.width);
    const FeatureStats& stats = stored->second;
    // Numbers of several axes have statistics per column in some versions; widths are another
    // check.
    if (feature.shape.size() > 1 || (!stats.mean.empty() && stats.mean.size() != width)) continue;
    if (column->second.values.empty()) continue;
    compare_column(feature, stats, column->second, findings);
  }
}

void check_unused_files(const Layout& layout, Findings& findings) {
  std::set<std::string> used;
  for (const EpisodeRecord& episode : layout.episodes) {
    if (episode.length <= 0) continue;
    if (episode.data_file >= 0) {
      used.insert(layout.data_files[static_cast<size_t>(episode.data_file)].path);
    }
    for (const VideoSpan& span : episode.spans) {
      if (span.file >= 0) used.insert(layout.video_files[static_cast<size_t>(span.file)].path);
    }
  }
  std::vector<std::string> unused;
  for (const char* folder : {"data", "videos"}) {
    std::error_code code;
    for (fs::recursive_directory_iterator it(layout.root / folder, code), end; !code && it != end;
         it.increment(code)) {
      std::error_code ignored;
      if (!it->is_regular_file(ignored)) continue;
      std::string path = it->path().lexically_relative(layout.root).generic_string();
      if (!used.contains(path)) unused.push_back(std::move(path));
    }
  }
  std::sort(unused.begin(), unused.end());
  for (const std::string& path : unused) {
    findings.info("unused-file", printable(path, 200), "no episode uses this file", "",
                  "remove it, or restore the episodes that belong to it");
  }
}

void check_task_texts(const Opened& opened, Findings& findings) {
  const std::string place = opened.layout.is_v3() ? "meta/tasks.parquet" : "meta/tasks.jsonl";
  std::set<int64_t> used(opened.table.task_index.begin(), opened.table.task_index.end());
  std::map<std::string, int64_t> first;
  for (const auto& [index, text] : opened.layout.tasks) {
    const std::string own = fmt::format("{}, task_index {}", place, index);
    if (trim(text).empty()) {
      findings.warn("task-empty", own, "the text is empty", "what the robot is told to do",
                    "write the task's text");
    }
    const auto [slot, inserted] = first.emplace(text, index);
    if (!inserted) {
      findings.info("task-double", own,
                    fmt::format("it has the same text as task_index {}", slot->second), "",
                    "both are read as that text");
    }
    if (!used.empty() && !used.contains(index)) {
      findings.info("task-unused", own, "no row has this task");
    }
  }
}

}  // namespace longship::data::lerobot
