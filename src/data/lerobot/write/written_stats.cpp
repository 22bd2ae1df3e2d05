#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "base/log.h"
#include "data/lerobot/write/write_files.h"

namespace longship::data::lerobot {

namespace {

/// lerobot's aggregate: means weighted by count, variances about the total mean.
FullStats aggregate(const std::vector<const FullStats*>& parts) {
  FullStats out = *parts.front();
  bool has_std = true;
  for (const FullStats* part : parts) has_std = has_std && part->std.size() == part->mean.size();
  double total = 0;
  for (const FullStats* part : parts) total += static_cast<double>(part->count);
  out.count = static_cast<int64_t>(total);
  out.quantiles = {};
  out.std.clear();
  for (size_t d = 0; d < out.mean.size(); ++d) {
    double sum = 0, squares = 0;
    for (const FullStats* part : parts) {
      sum += part->mean[d] * static_cast<double>(part->count);
      out.min[d] = std::min(out.min[d], part->min[d]);
      out.max[d] = std::max(out.max[d], part->max[d]);
    }
    out.mean[d] = sum / total;
    if (!has_std) continue;
    for (const FullStats* part : parts) {
      const double delta = part->mean[d] - out.mean[d];
      squares += (part->std[d] * part->std[d] + delta * delta) * static_cast<double>(part->count);
    }
    out.std.push_back(std::sqrt(squares / total));
  }
  return out;
}

void add_column(const Plan& plan, const Feature& feature, WrittenStats& out) {
  const int64_t width = feature.width();
  if (feature.kind != FeatureKind::kNumeric || width == 0) return;
  // Of several axes the last one has statistics, as lerobot computes them.
  const int64_t axis = feature.shape.empty() ? 1 : feature.shape.back();
  // As dataset_stats: exact while a gibibyte holds the values.
  const bool exact = plan.num_frames * width * 8 <= int64_t{1} << 30;
  StatsAccumulator total(axis, exact);
  for (size_t e = 0; e < plan.episodes.size(); ++e) {
    const PlannedEpisode& episode = plan.episodes[e];
    const EpisodeRecord& record = plan.record(episode);
    const Table& table = plan.sources[episode.source]->opened.table;
    const auto n = static_cast<size_t>(record.length);
    std::vector<double> values;
    if (feature.name == "index" || feature.name == "episode_index" ||
        feature.name == "frame_index") {
      values.resize(n);
      for (size_t k = 0; k < n; ++k) {
        values[k] = feature.name == "episode_index" ? static_cast<double>(e)
                    : feature.name == "frame_index"
                        ? static_cast<double>(k)
                        : static_cast<double>(episode.first_row) + static_cast<double>(k);
      }
    } else if (feature.name == "task_index") {
      for (size_t k = 0; k < n; ++k) {
        const int64_t old = table.task_index[static_cast<size_t>(record.row_begin) + k];
        values.push_back(static_cast<double>(plan.task_index[episode.source].at(old)));
      }
    } else if (feature.name == "timestamp" && plan.options.timestamps) {
      for (size_t k = 0; k < n; ++k) {
        values.push_back(static_cast<float>(static_cast<double>(k) / plan.info().fps));
      }
    } else {
      const ColumnData& column = table.columns.find(feature.name)->second;
      const auto begin = column.values.begin() + record.row_begin * width;
      values.assign(begin, begin + record.length * width);
    }
    StatsAccumulator part(axis, exact);
    part.add(values);
    if (part.count() > 0) {
      FullStats& stats = out.per_episode[e][feature.name] = part.result();
      stats.count /= width / axis;
    }
    total.merge(std::move(part));
  }
  if (total.count() == 0) return;
  FullStats& stats = out.total[feature.name] = total.result();
  stats.count /= width / axis;
}

void add_stored_camera(const Plan& plan, const std::string& camera, WrittenStats& out) {
  std::vector<const FullStats*> parts;
  for (size_t e = 0; e < plan.episodes.size(); ++e) {
    const PlannedEpisode& episode = plan.episodes[e];
    const CameraStats& stored = plan.sources[episode.source]->camera_stats;
    const auto found = stored.find(plan.record(episode).index);
    if (found == stored.end() || !found->second.contains(camera)) continue;
    parts.push_back(&found->second.at(camera));
    out.per_episode[e][camera] = *parts.back();
  }
  if (parts.size() != plan.episodes.size()) {
    for (auto& episode : out.per_episode) episode.erase(camera);
    log::warn(
        "{}: no statistics of its pictures are written, for the source has none for every "
        "episode; --pixels computes them",
        camera);
    return;
  }
  out.total[camera] = aggregate(parts);
  if (out.total[camera].std.empty()) {
    log::warn(
        "{}: the std of its pictures is not written, for the source's is not to be trusted; "
        "--pixels computes it",
        camera);
  }
}

void add_decoded_camera(const Plan& plan, size_t camera, WrittenStats& out) {
  const std::string& name = plan.info().cameras[camera].name;
  PixelStats total;
  int64_t frames = 0;
  for (size_t e = 0; e < plan.episodes.size(); ++e) {
    const PlannedEpisode& episode = plan.episodes[e];
    const EpisodeRecord& record = plan.record(episode);
    const Source& source = *plan.sources[episode.source];
    const auto& cameras = source.opened.layout.info.cameras;
    size_t own = 0;
    while (cameras[own].name != name) ++own;
    PixelStats part;
    if (!cameras[own].is_video) {
      for (int64_t row = record.row_begin; row < record.row_end; ++row) {
        part.add(source.opened.images
                     ->read(own, source.file_row.empty()
                                     ? row
                                     : source.file_row[static_cast<size_t>(row)])
                     ->rgb);
      }
      out.per_episode[e][name] = part.result(record.length);
      total.merge(part);
      frames += record.length;
      continue;
    }
    const VideoSpan& span = record.spans[own];
    ReaderPool::Lease lease = source.opened.pool->acquire(span.file);
    const io::VideoInfo& info = lease.reader().info();
    std::vector<uint8_t> rgb(static_cast<size_t>(info.width * info.height * 3));
    for (int64_t k = 0; k < record.length; ++k) {
      lease.reader().read_rgb(span.first_frame + k, rgb.data());
      part.add(rgb);
    }
    out.per_episode[e][name] = part.result(record.length);
    total.merge(part);
    frames += record.length;
  }
  out.total[name] = total.result(frames);
}

}  // namespace

WrittenStats compute_written_stats(const Plan& plan) {
  WrittenStats out;
  out.per_episode.resize(plan.episodes.size());
  for (const Feature& feature : plan.info().features) add_column(plan, feature, out);
  for (size_t c = 0; c < plan.info().cameras.size(); ++c) {
    const CameraInfo& camera = plan.info().cameras[c];
    if (camera.is_depth) continue;
    if (plan.options.pixels) {
      add_decoded_camera(plan, c, out);
    } else {
      add_stored_camera(plan, camera.name, out);
    }
  }
  return out;
}

}  // namespace longship::data::lerobot
