#include "data/lerobot/dataset_stats.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/ordered_prefetch.h"
#include "base/strings.h"
#include "data/lerobot/check_deep.h"
#include "data/lerobot/opened.h"
#include "io/parquet.h"

namespace longship::data::lerobot {

namespace {

/// One column and how it is gathered.
struct Column {
  const Feature* feature = nullptr;
  int64_t per_row = 1;  // rows of statistics in a row of the table: all axes but the last
  int64_t width = 1;    // the last axis
  bool chunked = false;
};

struct Job {
  const StatsRequest& request;
  Layout layout;
  std::vector<Column> columns;
  std::vector<int64_t> file_begin;  // v3.0: first row of each data file
  std::vector<std::vector<size_t>> episodes_of_file;
  bool exact = true;
};

using Partial = std::vector<StatsAccumulator>;

Partial empty_partial(const Job& job) {
  Partial out;
  for (const Column& column : job.columns) out.emplace_back(column.width, job.exact);
  return out;
}

// Numbers beyond 2^24 stay whole.
bool is_counter(const std::string& name) {
  return name == "index" || name == "episode_index" || name == "frame_index" ||
         name == "task_index" || name == "timestamp";
}

std::vector<double> read_values(const io::ParquetTable& table, const Column& column) {
  const std::string& name = column.feature->name;
  if (column.feature->width() == 1 && is_counter(name)) return table.float64(name);
  const io::NumericColumn read = table.numeric(name);
  LS_CHECK(read.width == column.feature->width(), DataError,
           "{}: column '{}' is declared with {} numbers per row in info.json, the rows hold {}",
           table.path().string(), name, column.feature->width(), read.width);
  return {read.values.begin(), read.values.end()};
}

/// Chunks of one episode, relative to its states where the mask says so.
void add_chunks(const Job& job, std::span<const double> actions, std::span<const double> states,
                int64_t length, int64_t width, StatsAccumulator& out) {
  constexpr int64_t kBlock = 256;  // frames whose chunks are in memory at once
  const int64_t state_width = length == 0 ? 0 : static_cast<int64_t>(states.size()) / length;
  const std::vector<bool>& mask = job.request.delta_mask;
  std::vector<double> rows;
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    rows.clear();
    for (int64_t t = begin; t < std::min(begin + kBlock, length); ++t) {
      for (int64_t h = 0; h < job.request.horizon; ++h) {
        const int64_t row = std::min(t + h, length - 1);
        for (int64_t d = 0; d < width; ++d) {
          auto value = static_cast<float>(actions[static_cast<size_t>(row * width + d)]);
          if (d < static_cast<int64_t>(mask.size()) && mask[static_cast<size_t>(d)]) {
            value -= static_cast<float>(states[static_cast<size_t>(t * state_width + d)]);
          }
          rows.push_back(static_cast<double>(value));
        }
      }
    }
    out.add(std::span<const double>(rows));
  }
}

Partial read_file(const Job& job, int64_t file) {
  Partial out = empty_partial(job);
  const auto number = static_cast<size_t>(file);
  if (job.episodes_of_file[number].empty()) return out;
  const io::ParquetTable table =
      io::ParquetTable::open(job.layout.root / job.layout.data_files[number].path);
  std::vector<double> states;
  if (!job.request.delta_mask.empty()) {
    const io::NumericColumn read = table.numeric(job.request.state);
    states.assign(read.values.begin(), read.values.end());
  }
  for (size_t c = 0; c < job.columns.size(); ++c) {
    const Column& column = job.columns[c];
    const int64_t row_width = column.width * column.per_row;
    const std::vector<double> values = read_values(table, column);
    for (const size_t position : job.episodes_of_file[number]) {
      const EpisodeRecord& episode = job.layout.episodes[position];
      const int64_t begin =
          job.layout.is_v3() ? episode.row_begin - job.file_begin[number] : int64_t{0};
      const bool holds = begin >= 0 && begin + episode.length <= table.num_rows() &&
                         (job.layout.is_v3() || episode.length == table.num_rows());
      LS_CHECK(holds, DataError,
               "{}: episode {} needs {} rows from row {} on, the table has {}; longship dataset "
               "validate tells what is wrong",
               table.path().string(), episode.index, episode.length, begin, table.num_rows());
      const auto rows = std::span<const double>(values).subspan(
          static_cast<size_t>(begin * row_width), static_cast<size_t>(episode.length * row_width));
      if (!column.chunked) {
        out[c].add(rows);
        continue;
      }
      const int64_t state_width =
          states.empty() ? 0 : static_cast<int64_t>(states.size()) / table.num_rows();
      const auto own = states.empty() ? std::span<const double>{}
                                      : std::span<const double>(states).subspan(
                                            static_cast<size_t>(begin * state_width),
                                            static_cast<size_t>(episode.length * state_width));
      add_chunks(job, rows, own, episode.length, column.width, out[c]);
    }
  }
  return out;
}

const Feature& numeric_feature(const Layout& layout, const std::string& name, const char* option) {
  std::vector<std::string> known;
  for (const Feature& feature : layout.info.features) {
    if (feature.kind != FeatureKind::kNumeric) continue;
    if (feature.name == name) return feature;
    known.push_back(feature.name);
  }
  throw ConfigError(fmt::format("{}: {} has no numeric feature '{}'; it has {}", option,
                                layout.root.string(), name, join(known, ", ")));
}

void choose_columns(const StatsRequest& request, Job& job) {
  for (const std::string& name : request.columns) numeric_feature(job.layout, name, "--columns");
  for (const Feature& feature : job.layout.info.features) {
    const bool wanted = request.columns.empty() ||
                        std::find(request.columns.begin(), request.columns.end(), feature.name) !=
                            request.columns.end();
    if (feature.kind != FeatureKind::kNumeric || feature.width() == 0 || !wanted) continue;
    Column column;
    column.feature = &feature;
    column.width = feature.shape.empty() ? 1 : feature.shape.back();
    column.per_row = feature.width() / column.width;
    column.chunked = request.horizon > 0 && feature.name == request.action;
    job.columns.push_back(column);
  }
  if (request.horizon == 0) {
    LS_CHECK(request.delta_mask.empty(), ConfigError,
             "--delta-mask: differences to the state are taken over chunks; give --horizon");
    return;
  }
  const Feature& action = numeric_feature(job.layout, request.action, "--action");
  const auto mask = static_cast<int64_t>(request.delta_mask.size());
  LS_CHECK(mask <= action.width(), ConfigError, "--delta-mask: has {} dimensions, '{}' has {}",
           mask, action.name, action.width());
  if (mask == 0) return;
  const Feature& state = numeric_feature(job.layout, request.state, "--state");
  for (int64_t d = 0; d < mask; ++d) {
    LS_CHECK(!request.delta_mask[static_cast<size_t>(d)] || d < state.width(), ConfigError,
             "--delta-mask: takes the difference in dimension {}, '{}' has {}", d, state.name,
             state.width());
  }
}

void place_episodes(Job& job) {
  Layout& layout = job.layout;
  if (layout.is_v3()) {
    int64_t rows = 0;
    for (const DataFile& file : layout.data_files) {
      job.file_begin.push_back(rows);
      rows += io::ParquetTable::open(layout.root / file.path).num_rows();
    }
  }
  job.episodes_of_file.resize(layout.data_files.size());
  for (size_t e = 0; e < layout.episodes.size(); ++e) {
    const EpisodeRecord& episode = layout.episodes[e];
    if (episode.length <= 0) continue;
    job.episodes_of_file[static_cast<size_t>(episode.data_file)].push_back(e);
  }
}

void add_cameras(const std::filesystem::path& root, const StatsRequest& request, int64_t threads,
                 StatsResult& result) {
  Findings findings;
  const std::optional<Opened> opened = inspect(root, {}, findings);
  findings.throw_if_errors(root);
  const auto pixels = check_pictures(*opened, threads, request.progress, findings);
  findings.throw_if_errors(root);
  for (const CameraInfo& camera : opened->layout.info.cameras) {
    const auto found = pixels.find(camera.name);
    if (found == pixels.end() || found->second.stats.num_pixels() == 0) continue;
    result.features.push_back(
        {camera.name, found->second.stats.result(found->second.num_frames), true});
  }
}

}  // namespace

StatsResult dataset_stats(const std::filesystem::path& root, const StatsRequest& request) {
  LS_CHECK(request.horizon >= 0 && request.horizon <= 100000, ConfigError, "--horizon: {}",
           request.horizon);
  Findings findings;
  std::optional<Layout> layout = read_layout(root, findings);
  findings.throw_if_errors(root);
  LS_CHECK(layout.has_value(), InternalError, "dataset {} was not read, without a reason",
           root.string());
  Job job{request, std::move(*layout), {}, {}, {}, true};
  choose_columns(request, job);
  place_episodes(job);
  int64_t frames = 0;
  for (const EpisodeRecord& episode : job.layout.episodes) frames += episode.length;
  LS_CHECK(frames > 0, DataError, "{}: there are no samples: every episode is empty",
           root.string());
  StatsResult result;
  for (const Column& column : job.columns) {
    result.value_bytes +=
        8 * frames * column.feature->width() * (column.chunked ? request.horizon : int64_t{1});
  }
  job.exact = result.exact = result.value_bytes <= request.memory_bytes;
  const int64_t threads = request.threads > 0
                              ? request.threads
                              : std::max<int64_t>(1, std::thread::hardware_concurrency());
  const auto num_files = static_cast<int64_t>(job.layout.data_files.size());
  OrderedPrefetcher<Partial> parts(
      threads == 1 ? 0 : threads, 2 * threads,
      [&job](int64_t file) { return read_file(job, file); }, 0, num_files);
  Partial sums = empty_partial(job);
  int64_t done = 0;
  for (int64_t file = 0; file < num_files; ++file) {
    Partial part = parts.next();
    for (size_t c = 0; c < sums.size(); ++c) sums[c].merge(std::move(part[c]));
    for (const size_t e : job.episodes_of_file[static_cast<size_t>(file)]) {
      done += job.layout.episodes[e].length;
    }
    if (request.progress) request.progress(done, frames);
  }
  for (size_t c = 0; c < sums.size(); ++c) {
    const Column& column = job.columns[c];
    LS_CHECK(sums[c].count() > 0, DataError, "{}: column '{}' has no finite row", root.string(),
             column.feature->name);
    FullStats stats = sums[c].result();
    stats.count /= column.per_row;
    result.features.push_back({column.feature->name, std::move(stats), false});
  }
  if (request.pixels) add_cameras(root, request, threads, result);
  return result;
}

std::vector<bool> parse_delta_mask(const std::string& text) {
  std::vector<bool> mask;
  for (const std::string& part : split(text, ',')) {
    const std::string_view number = trim(part);
    const int64_t value = parse_whole_number(number).value_or(0);
    LS_CHECK(value != 0 && -10000 <= value && value <= 10000, ConfigError,
             "--delta-mask: '{}' is no run of dimensions; write 6,-1,6,-1 for six relative, one "
             "absolute, six relative, one absolute",
             printable(part));
    mask.insert(mask.end(), static_cast<size_t>(std::abs(value)), value > 0);
  }
  return mask;
}

std::string stats_json(const StatsResult& result) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const FeatureResult& feature : result.features) {
    out[feature.name] = stats_entry(feature.stats, feature.is_camera ? 3 : 1);
  }
  return out.dump(4) + "\n";
}

}  // namespace longship::data::lerobot
