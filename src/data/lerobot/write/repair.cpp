#include "data/lerobot/write/repair.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/lerobot/json_text.h"
#include "data/lerobot/stored_stats.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;

template <class T>
void permute(std::vector<T>& values, const std::vector<int64_t>& order, size_t width = 1) {
  if (values.empty()) return;
  std::vector<T> moved(values.size());
  for (size_t row = 0; row < order.size(); ++row) {
    const auto from = values.begin() + order[row] * static_cast<int64_t>(width);
    std::copy(from, from + static_cast<int64_t>(width),
              moved.begin() + static_cast<int64_t>(row * width));
  }
  values = std::move(moved);
}

class Repair {
 public:
  Repair(const fs::path& root, const RepairOptions& options) : root_(root), options_(options) {}

  std::unique_ptr<Source> run(std::vector<std::string>& mended) {
    Findings findings;
    std::optional<Layout> layout = parse_layout(root_, findings);
    findings.throw_if_errors(root_);
    LS_CHECK(layout.has_value(), InternalError, "dataset {} was not read, without a reason",
             root_.string());
    source_ = std::make_unique<Source>();
    source_->opened.layout = std::move(*layout);
    drop_episodes();
    compare_counters();
    source_->opened.table = read_table(this->layout(), findings);
    source_->file_row.resize(static_cast<size_t>(table().num_rows));
    std::iota(source_->file_row.begin(), source_->file_row.end(), int64_t{0});
    if (table().sound) {
      this->layout().is_v3() ? mend_rows_v3() : mend_lengths_v2();
      sort_episodes();
      mend_spans();
    }
    judge(findings);
    findings.throw_if_errors(root_);
    source_->info = read_json_object(root_ / "meta/info.json");
    source_->info["fps"] = this->layout().info.fps;
    source_->camera_stats = read_camera_stats(this->layout());
    mended = std::move(mended_);
    return std::move(source_);
  }

 private:
  Layout& layout() { return source_->opened.layout; }
  Table& table() { return source_->opened.table; }
  template <class... Args>
  void note(fmt::format_string<Args...> format, Args&&... args) {
    mended_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void drop_episodes();
  void compare_counters();
  void reorder(const std::vector<int64_t>& order);
  void mend_rows_v3();
  void mend_lengths_v2();
  void sort_episodes();
  void mend_spans();
  void judge(Findings& findings);

  fs::path root_;
  const RepairOptions& options_;
  std::unique_ptr<Source> source_;
  std::vector<std::string> mended_;
};

void Repair::drop_episodes() {
  const std::set<int64_t> drop(options_.drop_episodes.begin(), options_.drop_episodes.end());
  for (const int64_t index : drop) {
    const auto found = std::find_if(layout().episodes.begin(), layout().episodes.end(),
                                    [&](const EpisodeRecord& e) { return e.index == index; });
    LS_CHECK(found != layout().episodes.end(), ConfigError,
             "--drop-episodes: there is no episode {} in {}", index, root_.string());
    note("episode {}: left out, as asked", index);
    // Without rows and frames nothing is looked for; the writer leaves it out.
    found->length = 0;
    found->row_begin = found->row_end = 0;
    found->data_file = -1;
    for (VideoSpan& span : found->spans) span.file = -1;
  }
  if (drop.empty()) return;
  // Files of v2.x belong to one episode: those of the dropped ones are not read. Tables of v3.0
  // count rows and stay.
  std::vector<DataFile> data;
  std::vector<VideoFile> videos;
  for (EpisodeRecord& episode : layout().episodes) {
    if (episode.data_file >= 0 && !layout().is_v3()) {
      data.push_back(layout().data_files[static_cast<size_t>(episode.data_file)]);
      episode.data_file = static_cast<int64_t>(data.size()) - 1;
    }
  }
  if (!layout().is_v3()) layout().data_files = std::move(data);
  std::map<int64_t, int64_t> number;
  for (EpisodeRecord& episode : layout().episodes) {
    for (VideoSpan& span : episode.spans) {
      if (span.file < 0) continue;
      const auto [slot, inserted] = number.emplace(span.file, static_cast<int64_t>(videos.size()));
      if (inserted) videos.push_back(layout().video_files[static_cast<size_t>(span.file)]);
      span.file = slot->second;
    }
  }
  layout().video_files = std::move(videos);
}

void Repair::compare_counters() {
  const Info& info = layout().info;
  int64_t frames = 0;
  for (const EpisodeRecord& episode : layout().episodes)
    frames += std::max<int64_t>(0, episode.length);
  const auto episodes = static_cast<int64_t>(layout().episodes.size());
  if (info.total_episodes && *info.total_episodes != episodes) {
    note("total_episodes: {} in meta/info.json, {} listed; written anew", *info.total_episodes,
         episodes);
  }
  if (info.total_frames && *info.total_frames != frames) {
    note("total_frames: {} in meta/info.json, {} by the lengths; written anew", *info.total_frames,
         frames);
  }
}

/// Row k of the table becomes what row order[k] was.
void Repair::reorder(const std::vector<int64_t>& order) {
  for (auto& [name, column] : table().columns) {
    if (column.sound) permute(column.values, order, static_cast<size_t>(column.width));
  }
  permute(table().timestamp, order);
  permute(table().task_index, order);
  permute(table().frame_index, order);
  permute(table().episode_index, order);
  permute(table().index, order);
  permute(source_->file_row, order);
}

void Repair::mend_rows_v3() {
  Table& rows = table();
  if (!rows.index.empty() && !std::is_sorted(rows.index.begin(), rows.index.end())) {
    std::vector<int64_t> order(rows.index.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return rows.index[static_cast<size_t>(a)] < rows.index[static_cast<size_t>(b)];
    });
    reorder(order);
    note("rows: sorted by column index");
  }
  if (rows.episode_index.empty()) return;
  // [first row, one past the last] of every episode whose rows are in one piece.
  std::map<int64_t, std::pair<int64_t, int64_t>> range;
  std::set<int64_t> torn;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    const int64_t owner = rows.episode_index[static_cast<size_t>(row)];
    const auto [slot, inserted] = range.emplace(owner, std::pair(row, row + 1));
    if (inserted) continue;
    if (slot->second.second == row) {
      slot->second.second = row + 1;
    } else {
      torn.insert(owner);
    }
  }
  for (EpisodeRecord& episode : layout().episodes) {
    if (episode.length <= 0 || torn.contains(episode.index)) continue;
    const auto found = range.find(episode.index);
    if (found == range.end()) {
      note("episode {}: no row belongs to it by column episode_index; left out", episode.index);
      episode.length = 0;
      episode.row_begin = episode.row_end = 0;
      episode.data_file = -1;
      for (VideoSpan& span : episode.spans) span.file = -1;
      continue;
    }
    const auto [begin, end] = found->second;
    const auto next = std::upper_bound(rows.file_begin.begin(), rows.file_begin.end() - 1,
                                       source_->file_row[static_cast<size_t>(begin)]);
    const int64_t file = next - rows.file_begin.begin() - 1;
    if (begin != episode.row_begin || end != episode.row_end) {
      note("episode {}: rows {}..{} by column episode_index in place of {}..{}", episode.index,
           begin, end - 1, episode.row_begin, episode.row_end - 1);
    }
    if (file != episode.data_file) {
      note("episode {}: its rows lie in {}, not in {}", episode.index,
           layout().data_files[static_cast<size_t>(file)].path,
           layout().data_files[static_cast<size_t>(episode.data_file)].path);
    }
    if (end - begin != episode.length) {
      note("episode {}: length {} by its rows in place of {}", episode.index, end - begin,
           episode.length);
    }
    episode.row_begin = begin;
    episode.row_end = end;
    episode.length = end - begin;
    episode.data_file = file;
  }
  // Rows are now counted in the order of the table; only their files are of the old order.
  for (size_t row = 0; row < rows.index.size(); ++row) rows.index[row] = static_cast<int64_t>(row);
}

void Repair::mend_lengths_v2() {
  for (EpisodeRecord& episode : layout().episodes) {
    if (episode.length <= 0) continue;
    const int64_t found = episode.row_end - episode.row_begin;
    if (found == episode.length || found == 0) continue;
    note("episode {}: length {} by its rows in place of {}", episode.index, found, episode.length);
    episode.length = found;
  }
}

void Repair::sort_episodes() {
  Table& rows = table();
  if (rows.frame_index.empty()) return;
  std::vector<int64_t> order(static_cast<size_t>(rows.num_rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  bool moved = false;
  for (const EpisodeRecord& episode : layout().episodes) {
    if (episode.length <= 0 || episode.row_end > rows.num_rows || episode.row_begin < 0) continue;
    const auto begin = order.begin() + episode.row_begin, end = order.begin() + episode.row_end;
    const auto frame = [&](int64_t row) { return rows.frame_index[static_cast<size_t>(row)]; };
    if (std::is_sorted(begin, end, [&](int64_t a, int64_t b) { return frame(a) < frame(b); })) {
      continue;
    }
    std::vector<int64_t> sorted(begin, end);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](int64_t a, int64_t b) { return frame(a) < frame(b); });
    bool whole = true;  // every frame once, else nothing tells which row is which
    for (size_t k = 0; k < sorted.size(); ++k) {
      whole = whole && frame(sorted[k]) == static_cast<int64_t>(k);
    }
    if (!whole) continue;
    std::copy(sorted.begin(), sorted.end(), begin);
    note("episode {}: rows sorted by frame_index", episode.index);
    moved = true;
  }
  if (!moved) return;
  reorder(order);
  for (size_t row = 0; row < rows.index.size(); ++row) rows.index[row] = static_cast<int64_t>(row);
}

void Repair::mend_spans() {
  if (!layout().is_v3()) return;
  const std::unique_ptr<ReaderPool> pool = make_pool(layout());
  for (size_t file = 0; file < layout().video_files.size(); ++file) {
    const VideoFile& video = layout().video_files[file];
    std::vector<EpisodeRecord*> users;
    for (EpisodeRecord& episode : layout().episodes) {
      if (episode.length > 0 && episode.spans[video.camera].file == static_cast<int64_t>(file)) {
        users.push_back(&episode);
      }
    }
    if (users.empty()) continue;
    io::VideoIndexPtr index;
    try {
      index = pool->index(static_cast<int64_t>(file));
    } catch (const Error&) {
      continue;  // the check of the videos reports it
    }
    const double rate = index->info().average_fps.value();
    const auto earlier = [&](const EpisodeRecord* a, const EpisodeRecord* b) {
      return a->spans[video.camera].from_s < b->spans[video.camera].from_s;
    };
    const double first =
        (*std::min_element(users.begin(), users.end(), earlier))->spans[video.camera].from_s;
    const EpisodeRecord& last = **std::max_element(users.begin(), users.end(), earlier);
    const auto end_of = [&](double from) { return std::llround(from * rate) + last.length; };
    const double late = last.spans[video.camera].from_s;
    const bool past_the_end = end_of(late) > index->info().num_frames;
    if (!(first > 0) || !past_the_end || end_of(late - first) > index->info().num_frames) continue;
    for (EpisodeRecord* episode : users) {
      episode->spans[video.camera].from_s -= first;
      episode->spans[video.camera].to_s -= first;
    }
    note("{}: the spans of {} episodes were late by {:.6g} s, which was subtracted", video.path,
         users.size(), first);
  }
}

void Repair::judge(Findings& findings) {
  check_layout(layout(), findings);
  // Declared counters are written anew.
  layout().info.total_episodes.reset();
  layout().info.total_frames.reset();
  // Files are compared with the rows in the order that the table has now.
  std::vector<int64_t> file_of_episode;
  if (layout().is_v3()) {
    for (EpisodeRecord& episode : layout().episodes) {
      file_of_episode.push_back(episode.data_file);
      if (episode.length <= 0 || episode.row_begin < 0 || episode.row_begin >= table().num_rows) {
        continue;
      }
      const auto next = std::upper_bound(table().file_begin.begin(), table().file_begin.end() - 1,
                                         episode.row_begin);
      episode.data_file = next - table().file_begin.begin() - 1;
    }
  }
  check_rows(layout(), table(), {}, findings);
  for (size_t e = 0; e < file_of_episode.size(); ++e) {
    layout().episodes[e].data_file = file_of_episode[e];
  }
  source_->opened.pool = make_pool(layout());
  source_->opened.sizes = check_videos(layout(), *source_->opened.pool, findings);
  source_->opened.images = std::make_unique<ImageColumns>(layout(), table());
  // Of rows in another order the heads are read once more when the new dataset is checked.
  if (std::is_sorted(source_->file_row.begin(), source_->file_row.end())) {
    check_images(layout(), table(), findings);
  }
  // Stored statistics are written anew; what is wrong with them is told, and no reason to stop.
  Findings about_stats;
  const auto stored = read_stored_stats(layout(), about_stats);
  check_stats(layout(), table(), stored, {}, about_stats);
  for (const Finding& finding : about_stats.list()) {
    if (finding.severity == Severity::kInfo && finding.code != "stats-missing" &&
        finding.code != "stats-no-quantiles") {
      continue;
    }
    note("{}: {}; computed from the rows", finding.place, finding.fact);
  }
}

}  // namespace

RepairSummary repair_dataset(const fs::path& source, const fs::path& target,
                             const RepairOptions& options) {
  RepairSummary summary;
  const std::unique_ptr<Source> mended = Repair(source, options).run(summary.mended);
  if (options.write.timestamps) {
    summary.mended.push_back("timestamps: frame k of every episode gets k / fps");
  }
  Selection selection{mended.get(), {}};
  for (size_t e = 0; e < mended->opened.layout.episodes.size(); ++e) {
    if (mended->opened.layout.episodes[e].length > 0) selection.positions.push_back(e);
  }
  summary.written = write_dataset(target, std::span(&selection, 1), options.write);
  return summary;
}

}  // namespace longship::data::lerobot
