// Do the rows say what the metadata say?

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "base/strings.h"
#include "data/lerobot/table.h"

namespace longship::data::lerobot {

namespace {

constexpr int64_t kMaxLength = int64_t{1} << 40;  // keeps sums of untrusted lengths in range

std::string place_of(const EpisodeRecord& episode) {
  return fmt::format("episode {}", episode.index);
}

template <class T>
std::span<const T> rows_of(const std::vector<T>& column, const EpisodeRecord& episode) {
  if (column.empty()) return {};
  return std::span<const T>(column).subspan(
      static_cast<size_t>(episode.row_begin),
      static_cast<size_t>(episode.row_end - episode.row_begin));
}

int64_t file_of_row(const Table& table, int64_t row) {
  const auto next = std::upper_bound(table.file_begin.begin(), table.file_begin.end() - 1, row);
  return next - table.file_begin.begin() - 1;
}

// v2.x: one table per episode.
bool check_length(const Layout& layout, const EpisodeRecord& episode, Findings& findings) {
  const int64_t found = episode.row_end - episode.row_begin;
  if (found == episode.length) return true;
  findings.error(
      "length-mismatch", place_of(episode),
      fmt::format("declared {}, found {} rows in {}", episode.length, found,
                  layout.data_files[static_cast<size_t>(episode.data_file)].path),
      "equal numbers",
      "correct the length in meta/episodes.jsonl or restore the table; longship dataset repair "
      "takes the number of rows");
  return false;
}

// Whose rows a claimed range begins with, when they are another episode's.
std::string owner_text(const Table& table, const EpisodeRecord& episode) {
  if (table.episode_index.empty()) return "";
  const int64_t owner = table.episode_index[static_cast<size_t>(episode.row_begin)];
  if (owner == episode.index) return "";
  return fmt::format(", which belong to episode {} by column episode_index", owner);
}

// v3.0: the declared row range is the only link between an episode and its rows.
bool check_range(const Layout& layout, const Table& table, const EpisodeRecord& episode,
                 Findings& findings) {
  const std::string range =
      fmt::format("rows {}..{}", episode.row_begin, std::max(episode.row_end, int64_t{1}) - 1);
  if (episode.row_begin < 0 || episode.row_end <= episode.row_begin ||
      episode.row_end > table.num_rows) {
    findings.error("row-range", place_of(episode),
                   fmt::format("it claims {}, the data files end at row {}", range, table.num_rows),
                   "ranges inside the data",
                   "restore the data files; longship dataset repair leaves out an episode that has "
                   "no rows");
    return false;
  }
  if (episode.row_end - episode.row_begin != episode.length) {
    findings.error(
        "length-mismatch", place_of(episode),
        fmt::format("declared length {}, but it claims {} ({} rows{})", episode.length, range,
                    episode.row_end - episode.row_begin, owner_text(table, episode)),
        "equal numbers", "longship dataset repair makes the episode table again from the rows");
    return false;
  }
  const int64_t file = file_of_row(table, episode.row_begin);
  if (file != episode.data_file || file != file_of_row(table, episode.row_end - 1)) {
    findings.error("wrong-data-file", place_of(episode),
                   fmt::format("it is declared in {}, but its {} lie in {}",
                               layout.data_files[static_cast<size_t>(episode.data_file)].path,
                               range, layout.data_files[static_cast<size_t>(file)].path),
                   "the file that holds the rows",
                   "correct data/file_index in meta/episodes, or longship dataset repair");
    return false;
  }
  return true;
}

bool check_index_column(const Layout& layout, const Table& table, Findings& findings) {
  if (!layout.is_v3()) return true;
  for (size_t row = 0; row < table.index.size(); ++row) {
    if (table.index[row] == static_cast<int64_t>(row)) continue;
    const int64_t file = file_of_row(table, static_cast<int64_t>(row));
    findings.error(
        "row-order", layout.data_files[static_cast<size_t>(file)].path,
        fmt::format("column index is {} in row {} of the dataset", table.index[row], row),
        fmt::format("0..{} in order, else the row ranges of the episodes do not hold",
                    table.num_rows - 1),
        "longship dataset repair sorts the rows by index");
    return false;
  }
  return true;
}

void check_order(const Table& table, const EpisodeRecord& episode, Findings& findings) {
  const auto owner = rows_of(table.episode_index, episode);
  const auto stranger = std::find_if(owner.begin(), owner.end(),
                                     [&](int64_t index) { return index != episode.index; });
  if (stranger != owner.end()) {
    findings.error("episode-index", place_of(episode),
                   fmt::format("row {} of it belongs to episode {} by column episode_index",
                               stranger - owner.begin(), *stranger),
                   "one episode_index",
                   "longship dataset repair makes the episode table again from the rows");
    return;
  }
  const auto frame = rows_of(table.frame_index, episode);
  const auto time = rows_of(table.timestamp, episode);
  for (size_t k = 0; k < frame.size(); ++k) {
    if (frame[k] == static_cast<int64_t>(k)) continue;
    const bool timeless = !time.empty() && std::all_of(time.begin(), time.end(),
                                                       [&](double t) { return t == time.front(); });
    findings.error(
        "frame-order", place_of(episode),
        fmt::format("row {} has frame_index {}{}", k, frame[k],
                    timeless ? ", and the timestamps are constant, so nothing tells which row "
                               "belongs to which frame"
                             : ""),
        fmt::format("frame_index 0..{} in order", frame.size() - 1),
        "longship dataset repair sorts the rows of an episode by frame_index where every frame is "
        "there once");
    return;
  }
}

std::string jitter_text(std::span<const double> time, double period) {
  std::vector<double> jitter;
  std::string gaps;
  for (size_t k = 1; k < time.size(); ++k) {
    const double step = time[k] - time[k - 1];
    if (step > 1.5 * period) {
      if (gaps.size() < 100) {
        gaps += fmt::format(", a gap of {:.1f} periods after row {}", step / period - 1, k - 1);
      }
    } else {
      jitter.push_back(std::abs(step - period));
    }
  }
  std::sort(jitter.begin(), jitter.end());
  const double p99 = jitter.empty() ? 0 : jitter[(jitter.size() - 1) * 99 / 100];
  const double drift = time.back() - time.front() - static_cast<double>(time.size() - 1) * period;
  return fmt::format(
      "timestamps start at {:.4g} s, jitter by {:.2g} ms (99th percentile) and end "
      "{:.3g} s off the frame grid{}",
      time.front(), p99 * 1e3, drift, gaps);
}

// Row k belongs to frame k whatever the clock says; the clock is only judged.
void check_times(const Layout& layout, const Table& table, const EpisodeRecord& episode,
                 Findings& findings) {
  const auto time = rows_of(table.timestamp, episode);
  if (time.size() < 2 || layout.info.fps <= 0) return;
  const std::string cure = "frame k is used for row k";
  if (std::all_of(time.begin(), time.end(), [&](double t) { return t == time.front(); })) {
    findings.warn("timestamps", place_of(episode),
                  fmt::format("all timestamps are {}", time.front()), "rising timestamps",
                  table.frame_index.empty() ? cure : "frame_index is used");
    return;
  }
  const double period = 1 / layout.info.fps;
  double worst = 0, largest = 0;
  for (size_t k = 0; k < time.size(); ++k) {
    if (!std::isfinite(time[k])) {
      findings.error("timestamps", place_of(episode),
                     fmt::format("the timestamp of row {} is {}", k, time[k]), "a number");
      return;
    }
    if (k > 0 && time[k] < time[k - 1]) {
      findings.error("timestamps", place_of(episode),
                     fmt::format("the time falls from {:.4g} s back to {:.4g} s at row {}",
                                 time[k - 1], time[k], k),
                     "rising timestamps; two episodes under one index?",
                     "split the recording into two episodes");
      return;
    }
    worst = std::max(worst, std::abs(time[k] - static_cast<double>(k) * period));
    largest = std::max(largest, std::abs(time[k]));
  }
  for (size_t k = 1; k < time.size(); ++k) {
    if (time[k] != time[k - 1]) continue;
    findings.warn("timestamps", place_of(episode),
                  fmt::format("rows {} and {} have the same timestamp", k - 1, k),
                  "rising timestamps", cure);
    return;
  }
  // Official tolerance, plus the resolution of float32 at this size.
  if (worst > 1e-4 + largest * 0x1p-22) {
    findings.warn("timestamps", place_of(episode), jitter_text(time, period),
                  fmt::format("multiples of 1/{:.6g} s from 0", layout.info.fps), cure);
  }
}

void check_tasks(const Layout& layout, const Table& table, const EpisodeRecord& episode,
                 Findings& findings) {
  std::set<std::string> by_rows;
  int64_t previous = -1;
  const auto numbers = rows_of(table.task_index, episode);
  for (size_t k = 0; k < numbers.size(); ++k) {
    if (numbers[k] == previous) continue;
    previous = numbers[k];
    const auto task = layout.tasks.find(previous);
    if (task == layout.tasks.end()) {
      findings.error(
          "task-index", place_of(episode),
          fmt::format("row {} has task_index {}, which the task list lacks", k, previous),
          fmt::format("one of the {} listed tasks", layout.tasks.size()),
          "add the task to the list");
      return;
    }
    by_rows.insert(task->second);
  }
  if (!episode.has_tasks || numbers.empty()) return;
  const std::set<std::string> listed(episode.tasks.begin(), episode.tasks.end());
  if (by_rows == listed) return;
  const auto quote = [](const std::set<std::string>& texts) {
    std::vector<std::string> parts;
    for (const std::string& text : texts) parts.push_back("\"" + printable(text) + "\"");
    return join(parts, ", ");
  };
  findings.warn("tasks-disagree", place_of(episode),
                fmt::format("the episode table lists the task {}, its rows say {}", quote(listed),
                            quote(by_rows)),
                "one text", "task_index of each row decides");
}

void check_finite(const Layout& layout, const std::string& name, const ColumnData& column,
                  bool used, bool tolerate, Findings& findings) {
  int64_t count = 0;
  std::string first;
  for (const EpisodeRecord& episode : layout.episodes) {
    for (int64_t i = episode.row_begin * column.width; i < episode.row_end * column.width; ++i) {
      const float value = column.values[static_cast<size_t>(i)];
      if (std::isfinite(value)) continue;
      ++count;
      const int64_t row = i / column.width;
      const std::string place = fmt::format("{}[{}], episode {}, frame {}", name, i % column.width,
                                            episode.index, row - episode.row_begin);
      if (first.empty()) first = place;
      if (!used) continue;
      const std::string fact = fmt::format("the value is {} (row {} of the dataset)",
                                           std::isnan(value) ? "NaN" : "infinite", row);
      if (tolerate) {
        findings.warn("non-finite", place, fact, "finite numbers",
                      "every sample whose window touches it is left out");
      } else {
        findings.error("non-finite", place, fact, "finite numbers",
                       "repair or remove the episode, or set data.on_bad_sample=skip to leave out "
                       "the samples that touch it");
      }
    }
  }
  if (count > 0 && !used) {
    findings.info(
        "non-finite", first,
        fmt::format("{} values of {} are NaN or infinite; no input uses this column", count, name));
  }
}

void check_constant(const std::string& name, const ColumnData& column, Findings& findings) {
  const auto width = static_cast<size_t>(column.width);
  const size_t num_rows = column.values.size() / width;
  if (num_rows < 2) return;
  for (size_t d = 0; d < width; ++d) {
    size_t row = 1;
    while (row < num_rows && column.values[row * width + d] == column.values[d]) ++row;
    if (row < num_rows) continue;
    findings.warn("constant-column", fmt::format("{}[{}]", name, d),
                  fmt::format("it is {} in all {} rows", column.values[d], num_rows),
                  "it carries no information",
                  "it is normalised to 0 and restored as this constant on output");
  }
}

void check_columns(const Layout& layout, const Table& table, const OpenOptions& options,
                   Findings& findings) {
  for (const auto& [name, column] : table.columns) {
    const bool used = std::find(options.used_columns.begin(), options.used_columns.end(), name) !=
                      options.used_columns.end();
    // Timestamps are checked apart.
    if (!column.sound || name == "timestamp") continue;
    check_finite(layout, name, column, used, options.tolerate_non_finite, findings);
    if (used) check_constant(name, column, findings);
  }
}

}  // namespace

void check_rows(const Layout& layout, const Table& table, const OpenOptions& options,
                Findings& findings) {
  // With a v3.0 file lost, nothing is known about the rows behind it.
  if (layout.is_v3() && !table.sound) return;
  int64_t num_samples = 0;
  bool ranges_hold = check_index_column(layout, table, findings);
  const bool in_order = ranges_hold;
  for (const EpisodeRecord& episode : layout.episodes) {
    if (episode.length < 0) ranges_hold = false;
    if (episode.length <= 0) continue;
    num_samples += std::min(episode.length, kMaxLength);
    if (!table.file_sound[static_cast<size_t>(episode.data_file)]) continue;
    const bool holds = layout.is_v3() ? check_range(layout, table, episode, findings)
                                      : check_length(layout, episode, findings);
    ranges_hold = ranges_hold && holds;
    if (!holds || !in_order) continue;
    check_order(table, episode, findings);
    check_times(layout, table, episode, findings);
    check_tasks(layout, table, episode, findings);
  }
  if (num_samples == 0) {
    findings.error("no-samples", "whole dataset", "there are no samples: every episode is empty",
                   "at least one frame", "record the data again");
    return;
  }
  if (table.task_index.empty() && table.sound) {
    findings.error("task-index", "whole dataset", "the tables have no readable column task_index",
                   "the number of the task in every row");
  }
  if (ranges_hold) check_columns(layout, table, options, findings);
  if (layout.info.total_frames && *layout.info.total_frames != num_samples) {
    findings.warn(
        "counters", "meta/info.json",
        fmt::format("total_frames is {}, the data has {}", *layout.info.total_frames, num_samples),
        "the data are used", "correct the counter, or longship dataset repair");
  }
}

}  // namespace longship::data::lerobot
