// Tables, statistics, files and texts, read to the last byte.

#include "data/lerobot/check_deep.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <span>
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

struct Difference {
  const char* what = nullptr;
  double stored = 0, found = 0;
};

/// Plain statistics of one dimension.
struct RowStats {
  double low = 0, high = 0, mean = 0, std_dev = 0;

  explicit RowStats(std::span<const double> rows) {
    const auto n = static_cast<double>(rows.size());
    low = *std::min_element(rows.begin(), rows.end());
    high = *std::max_element(rows.begin(), rows.end());
    for (const double x : rows) mean += x / n;
    double squares = 0;
    for (const double x : rows) squares += (x - mean) * (x - mean);
    std_dev = std::sqrt(squares / n);
  }
  /// What float32 and other orders of summing do.
  double rounding() const {
    return 1e-3 * (high - low) + 1e-6 * std::max(std::abs(low), std::abs(high)) + 1e-9;
  }
};

/// One dimension of the rows against its stored statistics. Statistics that are a few episodes
/// behind pass, those of another recording, robot or unit do not: a mean off by more than a quarter
/// of the std, a std off by more than a factor of two, more than a twentieth of the rows outside
/// minimum and maximum, or a range of more than twice that of the rows.
Difference difference_of(const FeatureStats& stored, std::span<const double> rows, size_t d) {
  const RowStats found(rows);
  const double rounding = found.rounding();
  const auto value = [d](const std::vector<double>& values) {
    return d < values.size() ? values[d] : NAN;  // NAN: not stored, and no comparison holds
  };
  const double mean = value(stored.mean), std_dev = value(stored.std);
  const double low = value(stored.min), high = value(stored.max);
  const double q01 = value(stored.q01), q99 = value(stored.q99);
  if (std::abs(mean - found.mean) > 0.25 * found.std_dev + rounding) {
    return {"mean", mean, found.mean};
  }
  if (std_dev > 2 * found.std_dev + rounding || std_dev < 0.5 * found.std_dev - rounding) {
    return {"std", std_dev, found.std_dev};
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  const auto below =
      std::count_if(rows.begin(), rows.end(), [&](double x) { return x < low - rounding; });
  const auto above =
      std::count_if(rows.begin(), rows.end(), [&](double x) { return x > high + rounding; });
  if (20 * below > num_rows) return {"min", low, found.low};
  if (20 * above > num_rows) return {"max", high, found.high};
  if (high - low > 2 * (found.high - found.low) + rounding) {
    return high > found.high + rounding ? Difference{"max", high, found.high}
                                        : Difference{"min", low, found.low};
  }
  if (q01 > q99 + rounding || q01 < low - rounding) return {"q01", q01, found.low};
  if (q99 > high + rounding) return {"q99", q99, found.high};
  return {};
}

void compare_column(const Feature& feature, const FeatureStats& stored, const ColumnData& column,
                    Findings& findings) {
  const auto width = static_cast<size_t>(column.width);
  std::vector<double> rows;
  for (size_t d = 0; d < width; ++d) {
    rows.clear();
    for (size_t i = d; i < column.values.size(); i += width) {
      if (std::isfinite(column.values[i])) rows.push_back(static_cast<double>(column.values[i]));
    }
    if (rows.empty()) continue;
    const Difference difference = difference_of(stored, rows, d);
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

/// No model here normalises with them, so only what is impossible is said: another unit, or a mean
/// that no picture has.
void compare_camera(const std::string& camera, const FeatureStats& stored,
                    const CameraPixels& pixels, Findings& findings) {
  constexpr int64_t kFewPixels = 32 * 32;  // a picture of so few shows one colour
  if (pixels.stats.num_pixels() <= pixels.num_frames * kFewPixels) return;
  if (stored.mean.size() != 3) return;
  const FullStats found = pixels.stats.result(pixels.num_frames);
  for (size_t c = 0; c < 3; ++c) {
    const double mean = stored.mean[c];
    if (mean >= found.min[c] - 0.02 && mean <= found.max[c] + 0.02) continue;
    findings.warn("stats-differ", fmt::format("{} channel {}", camera, c),
                  fmt::format("mean of {} is {:.4g}, the pictures lie between {:.4g} and {:.4g}",
                              stored.source, mean, found.min[c], found.max[c]),
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
