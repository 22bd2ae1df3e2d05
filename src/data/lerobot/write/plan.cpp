#include "data/lerobot/write/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/strings.h"
#include "data/lerobot/json_text.h"
#include "io/parquet.h"
#include "io/video_concat.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::vector<double> entry_numbers(const Json& stats, const char* key) {
  const auto found = stats.find(key);
  return found == stats.end() || found->is_null() ? std::vector<double>{}
                                                  : json_numbers(*found, key);
}

bool is_complete(const FullStats& stats) {
  return stats.count > 0 && stats.mean.size() == 3 && stats.min.size() == 3 &&
         stats.max.size() == 3;
}

void read_v21(const Layout& layout, CameraStats& out) {
  const char* name = "meta/episodes_stats.jsonl";
  Findings ignored;
  read_json_lines(layout.root / name, name, ignored, [&](int64_t, const Json& line) {
    const auto index = line.find("episode_index");
    const auto stats = line.find("stats");
    if (index == line.end() || stats == line.end()) return;
    for (const CameraInfo& camera : layout.info.cameras) {
      const auto entry = stats->find(camera.name);
      if (entry == stats->end() || !entry->is_object()) continue;
      FullStats read;
      read.min = entry_numbers(*entry, "min");
      read.max = entry_numbers(*entry, "max");
      read.mean = entry_numbers(*entry, "mean");
      read.std = entry_numbers(*entry, "std");
      const std::vector<double> count = entry_numbers(*entry, "count");
      read.count = count.empty() ? 0 : static_cast<int64_t>(count.front());
      if (read.std.size() != 3) read.std.clear();
      if (is_complete(read)) out[json_integer(*index, "episode_index")][camera.name] = read;
    }
  });
}

// The std is left out: writers of v3.0 squared 8-bit pictures in 8 bits.
void read_v30(const Layout& layout, const std::string& path, CameraStats& out) {
  const io::ParquetTable table = io::ParquetTable::open(layout.root / path);
  const std::vector<int64_t> index = table.int64("episode_index");
  for (const CameraInfo& camera : layout.info.cameras) {
    const std::string prefix = "stats/" + camera.name + "/";
    if (!table.has(prefix + "mean") || !table.has(prefix + "count")) continue;
    const io::NumericColumn low = table.numeric(prefix + "min"),
                            high = table.numeric(prefix + "max"),
                            mean = table.numeric(prefix + "mean"),
                            count = table.numeric(prefix + "count");
    if (low.width != 3 || high.width != 3 || mean.width != 3 || count.width != 1) continue;
    for (size_t i = 0; i < index.size(); ++i) {
      FullStats& stats = out[index[i]][camera.name];
      const auto row = [&](const io::NumericColumn& column) {
        const auto begin = column.values.begin() + static_cast<int64_t>(3 * i);
        return std::vector<double>(begin, begin + 3);
      };
      stats.min = row(low);
      stats.max = row(high);
      stats.mean = row(mean);
      stats.count = static_cast<int64_t>(count.values[i]);
    }
  }
}

std::string describe(const Feature& feature) {
  return fmt::format("{} [{}]", feature.dtype, fmt::join(feature.shape, ", "));
}

const Feature* find(const Info& info, const std::string& name) {
  const auto found = std::find_if(info.features.begin(), info.features.end(),
                                  [&](const Feature& f) { return f.name == name; });
  return found == info.features.end() ? nullptr : &*found;
}

std::string robot_type(const Source& source) {
  const auto found = source.info.find("robot_type");
  return found != source.info.end() && found->is_string() ? found->get<std::string>() : "";
}

void compare(const Source& first, const Source& other, std::vector<std::string>& faults) {
  const Info &a = first.opened.layout.info, &b = other.opened.layout.info;
  const std::string &in_a = first.opened.layout.root.string(),
                    &in_b = other.opened.layout.root.string();
  if (a.fps != b.fps) {
    faults.push_back(fmt::format("fps is {} in {} and {} in {}", a.fps, in_a, b.fps, in_b));
  }
  if (robot_type(first) != robot_type(other)) {
    faults.push_back(fmt::format("robot_type is \"{}\" in {} and \"{}\" in {}", robot_type(first),
                                 in_a, robot_type(other), in_b));
  }
  for (const Feature& feature : a.features) {
    const Feature* match = find(b, feature.name);
    if (match == nullptr) {
      faults.push_back(fmt::format("feature {} of {} is absent in {}", feature.name, in_a, in_b));
    } else if (match->dtype != feature.dtype || match->shape != feature.shape ||
               match->dim_names != feature.dim_names) {
      faults.push_back(fmt::format(
          "feature {} is {} in {} and {} in {}{}", feature.name, describe(feature), in_a,
          describe(*match), in_b,
          match->dim_names != feature.dim_names ? ", or its dimensions have other names" : ""));
    }
  }
  for (const Feature& feature : b.features) {
    if (find(a, feature.name) == nullptr) {
      faults.push_back(fmt::format("feature {} of {} is absent in {}", feature.name, in_b, in_a));
    }
  }
}

/// Unites the task lists: a text has one number, in the order of sources and of their lists.
void number_tasks(Plan& plan) {
  std::map<std::string, int64_t> number;
  const bool keep_numbers = plan.sources.size() == 1 && plan.options.keep_all_tasks;
  for (size_t s = 0; s < plan.sources.size(); ++s) {
    const Opened& opened = plan.sources[s]->opened;
    std::set<int64_t> used;
    for (const PlannedEpisode& episode : plan.episodes) {
      if (episode.source != s) continue;
      const EpisodeRecord& record = plan.record(episode);
      for (int64_t row = record.row_begin; row < record.row_end; ++row) {
        used.insert(opened.table.task_index[static_cast<size_t>(row)]);
      }
    }
    auto& map = plan.task_index.emplace_back();
    for (const auto& [index, text] : opened.layout.tasks) {
      if (keep_numbers) {
        // Gaps of the old numbering stay as they are.
        if (static_cast<int64_t>(plan.tasks.size()) <= index) {
          plan.tasks.resize(static_cast<size_t>(index) + 1);
        }
        plan.tasks[static_cast<size_t>(index)] = text;
        map[index] = index;
        continue;
      }
      if (!plan.options.keep_all_tasks && !used.contains(index)) continue;
      const auto [slot, inserted] = number.emplace(text, static_cast<int64_t>(plan.tasks.size()));
      if (inserted) plan.tasks.push_back(text);
      map[index] = slot->second;
    }
  }
}

}  // namespace

CameraStats read_camera_stats(const Layout& layout) {
  CameraStats out;
  std::error_code code;
  try {
    if (!layout.is_v3()) {
      if (fs::is_regular_file(layout.root / "meta/episodes_stats.jsonl", code)) {
        read_v21(layout, out);
      }
      return out;
    }
    for (fs::recursive_directory_iterator it(layout.root / "meta/episodes", code), end;
         !code && it != end; it.increment(code)) {
      if (it->path().extension() == ".parquet") {
        read_v30(layout, it->path().lexically_relative(layout.root).generic_string(), out);
      }
    }
  } catch (const Error& error) {
    log::warn("statistics of cameras are left out: {}", error.what());
    out.clear();
  }
  return out;
}

std::unique_ptr<Source> open_source(const fs::path& root) {
  auto source = std::make_unique<Source>();
  Findings findings;
  std::optional<Opened> opened = inspect(root, {}, findings);
  findings.throw_if_errors(root);
  LS_CHECK(opened.has_value(), InternalError, "dataset {} was not read, without a reason",
           root.string());
  findings.log_rest();
  source->opened = std::move(*opened);
  source->info = read_json_object(root / "meta/info.json");
  source->camera_stats = read_camera_stats(source->opened.layout);
  return source;
}

Plan make_plan(std::span<const Selection> selections, const WriteOptions& options) {
  LS_CHECK(!selections.empty(), InternalError, "no dataset to write from");
  Plan plan;
  plan.options = options;
  std::vector<std::string> faults;
  for (const Selection& selection : selections) {
    const size_t source = plan.sources.size();
    plan.sources.push_back(selection.source);
    if (source > 0) compare(*plan.sources.front(), *selection.source, faults);
    for (const size_t position : selection.positions) {
      const EpisodeRecord& record = plan.layout(source).episodes[position];
      if (record.length <= 0) continue;
      PlannedEpisode episode;
      episode.source = source;
      episode.position = position;
      episode.first_row = plan.num_frames;
      episode.spans.resize(plan.layout(source).info.cameras.size());
      plan.num_frames += record.length;
      plan.episodes.push_back(std::move(episode));
    }
  }
  if (!faults.empty()) {
    throw DataError(fmt::format("the datasets cannot be put together, {} {}:\n  {}", faults.size(),
                                faults.size() == 1 ? "difference" : "differences",
                                join(faults, "\n  ")));
  }
  LS_CHECK(plan.num_frames > 0, DataError, "{}: there is no frame to write",
           plan.layout(0).root.string());
  number_tasks(plan);
  plan.rate = io::rational_rate(plan.info().fps);
  // Containers keep their kind.
  const fs::path extension = fs::path(plan.info().video_path).extension();
  plan.data_path = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet";
  plan.video_path =
      fmt::format("videos/{{video_key}}/chunk-{{chunk_index:03d}}/file-{{file_index:03d}}{}",
                  extension == ".mkv" ? ".mkv" : ".mp4");
  return plan;
}

}  // namespace longship::data::lerobot
