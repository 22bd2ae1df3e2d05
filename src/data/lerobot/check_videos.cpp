#include "data/lerobot/check_videos.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <thread>

namespace longship::data::lerobot {

namespace {

constexpr double kMaxRateMismatch = 0.005;

struct FileCheck {
  std::vector<size_t> episodes;  // positions of the episodes with frames in this file
  PictureSize size;
  Findings findings;
};

/// One file and everything that must fit it.
struct FileContext {
  Layout& layout;
  const VideoFile& file;
  const io::VideoInfo& info;
  const io::VideoIndex& index;
  FileCheck& check;

  EpisodeRecord& episode(size_t i) const { return layout.episodes[check.episodes[i]]; }
  VideoSpan& span(size_t i) const { return episode(i).spans[file.camera]; }
};

// Frame periods that differ by more than a tenth (and more than the clock of a container may
// round).
bool is_variable_rate(const io::VideoInfo& info) {
  if (info.pts_s.size() < 3) return false;
  std::vector<double> periods(info.pts_s.size() - 1);
  for (size_t i = 0; i < periods.size(); ++i) periods[i] = info.pts_s[i + 1] - info.pts_s[i];
  std::vector<double> sorted = periods;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<int64_t>(sorted.size() / 2),
                   sorted.end());
  const double median = sorted[sorted.size() / 2];
  return std::any_of(periods.begin(), periods.end(), [median](double period) {
    return std::abs(period - median) > std::max(0.1 * median, 0.002);
  });
}

void check_rate(const FileContext& context, bool variable) {
  const double fps = context.layout.info.fps;
  const double rate = context.info.average_fps.value();
  if (variable) {
    context.check.findings.warn("variable-rate", context.file.path,
                                "the video has a variable frame rate", "a constant rate",
                                "frame k is used for row k");
  } else if (fps > 0 && context.info.num_frames > 1 &&
             !(std::abs(rate / fps - 1) <= kMaxRateMismatch)) {
    context.check.findings.error(
        "fps-mismatch", context.file.path,
        fmt::format("the video runs at {:.6g} frames/s, fps in meta/info.json is {:.6g}", rate,
                    fps),
        "equal rates", "correct fps, or record or convert the video at that rate");
  }
}

void check_whole_file(const FileContext& context) {
  const EpisodeRecord& episode = context.episode(0);
  const int64_t found = context.info.num_frames;
  const std::string& camera = context.layout.info.cameras[context.file.camera].name;
  context.span(0).first_frame = 0;
  if (found < episode.length) {
    context.check.findings.error(
        "video-too-short", context.file.path,
        fmt::format("episode {} has {} rows, its video of {} has {} frames", episode.index,
                    episode.length, camera, found),
        "one frame per row", "record the episode again or cut its rows");
  } else if (found > episode.length) {
    context.check.findings.warn("extra-frames", context.file.path,
                                fmt::format("{} frames without rows at the end of episode {}",
                                            found - episode.length, episode.index),
                                fmt::format("{} frames", episode.length),
                                fmt::format("the first {} are used", episode.length));
  }
}

// All spans of a file are late by the same time when the offset was not reset as the file began.
bool is_unreset_offset(const FileContext& context) {
  const size_t last = context.check.episodes.size() - 1;
  const int64_t shift = context.span(0).first_frame;
  return shift > 0 && context.span(last).first_frame + context.episode(last).length - shift <=
                          context.info.num_frames;
}

void check_span_ends(const FileContext& context) {
  Findings& findings = context.check.findings;
  int64_t total = 0;
  bool reported = false;
  for (size_t i = 0; i < context.check.episodes.size(); ++i) {
    const EpisodeRecord& episode = context.episode(i);
    const VideoSpan& span = context.span(i);
    total += std::min(episode.length, context.info.num_frames);
    const int64_t end = span.first_frame + episode.length;
    if (end > context.info.num_frames && is_unreset_offset(context)) {
      findings.error(
          "video-span", context.file.path,
          fmt::format("the spans of {} episodes end past the stream ({} frames): all are late by "
                      "{:.6g} s, as if the offset was not reset when this file began",
                      context.check.episodes.size(), context.info.num_frames,
                      context.span(0).from_s),
          fmt::format("from_timestamp 0 for episode {}", context.episode(0).index),
          "longship dataset repair subtracts it from from_timestamp and to_timestamp");
      return;
    }
    if (end > context.info.num_frames) {
      findings.error("video-span", context.file.path,
                     fmt::format("episode {} needs frames {}..{} (from_timestamp {:.6g} s), the "
                                 "video has {} frames",
                                 episode.index, span.first_frame, end - 1, span.from_s,
                                 context.info.num_frames),
                     "a span inside the video", "restore the video or correct meta/episodes");
      reported = true;
    }
    if (i > 0) {
      const int64_t previous_end = context.span(i - 1).first_frame + context.episode(i - 1).length;
      if (span.first_frame < previous_end) {
        findings.error("video-span", context.file.path,
                       fmt::format("episode {} starts at frame {}, inside episode {}, which ends "
                                   "before frame {}",
                                   episode.index, span.first_frame, context.episode(i - 1).index,
                                   previous_end),
                       "spans that do not overlap", "correct from_timestamp in meta/episodes");
        reported = true;
      }
    }
  }
  if (!reported && total < context.info.num_frames) {
    findings.warn("extra-frames", context.file.path,
                  fmt::format("{} frames belong to no episode", context.info.num_frames - total),
                  fmt::format("{} frames", total), "the spans skip them");
  }
}

void check_spans(const FileContext& context, bool variable) {
  const double rate = context.info.average_fps.value();
  std::vector<size_t>& episodes = context.check.episodes;
  const size_t camera = context.file.camera;
  std::stable_sort(episodes.begin(), episodes.end(), [&](size_t a, size_t b) {
    return context.layout.episodes[a].spans[camera].from_s <
           context.layout.episodes[b].spans[camera].from_s;
  });
  for (size_t i = 0; i < episodes.size(); ++i) {
    VideoSpan& span = context.span(i);
    if (!std::isfinite(span.from_s) || span.from_s < 0 || span.from_s > 1e9 ||
        !(context.episode(i).length <= context.info.num_frames)) {
      context.check.findings.error(
          "video-span", context.file.path,
          fmt::format("episode {} has from_timestamp {} and {} rows, the video has {} frames",
                      context.episode(i).index, span.from_s, context.episode(i).length,
                      context.info.num_frames),
          "a span inside the video", "restore the video or correct meta/episodes");
      return;
    }
    span.first_frame = variable ? context.index.nearest_frame(span.from_s)
                                : static_cast<int64_t>(std::llround(span.from_s * rate));
    const double declared = (span.to_s - span.from_s) * rate;
    if (!variable && !(std::abs(declared - static_cast<double>(context.episode(i).length)) < 1.5)) {
      context.check.findings.warn(
          "span-length", fmt::format("episode {}", context.episode(i).index),
          fmt::format("its span in {} lasts {:.6g} frames, it has {} rows", context.file.path,
                      declared, context.episode(i).length),
          "one frame per row", "the rows decide");
    }
  }
  check_span_ends(context);
}

void check_kind(const FileContext& context) {
  const CameraInfo& camera = context.layout.info.cameras[context.file.camera];
  if (context.info.is_depth && !camera.is_depth) {
    context.check.findings.error(
        "depth-video", context.file.path,
        fmt::format("the stream is {} with more than 8 bits, but camera {} is not marked as depth",
                    context.info.pixel_format, camera.name),
        "8-bit colour", "set video.is_depth_map in info.json, or convert the video");
  }
  if (context.info.rotation_deg != 0) {
    context.check.findings.warn(
        "rotation", context.file.path,
        fmt::format("the container asks for a rotation by {} degrees", context.info.rotation_deg),
        "no rotation", "pictures are used as they are stored");
  }
}

void check_file(Layout& layout, const VideoFile& file, int64_t number, ReaderPool& pool,
                FileCheck& check) {
  io::VideoIndexPtr index;
  try {
    index = pool.index(number);
  } catch (const std::exception& error) {  // none may leave the thread
    const auto lost = [&](const EpisodeRecord& e) { return e.spans[file.camera].file == number; };
    check.findings.error("video-unreadable", file.path,
                         fmt::format("{}; it holds {}", error.what(), episodes_text(layout, lost)),
                         "a video that FFmpeg decodes", "restore the file or convert it");
    return;
  }
  const FileContext context{layout, file, index->info(), *index, check};
  check.size = {context.info.height, context.info.width};
  const bool variable = is_variable_rate(context.info);
  check_kind(context);
  check_rate(context, variable);
  if (check.episodes.empty()) return;
  if (layout.is_v3()) {
    check_spans(context, variable);
  } else {
    check_whole_file(context);
  }
}

// One size per camera; the stream wins over the declaration.
void check_sizes(const Layout& layout, const std::vector<FileCheck>& checks, Findings& findings) {
  for (size_t c = 0; c < layout.info.cameras.size(); ++c) {
    const CameraInfo& camera = layout.info.cameras[c];
    std::map<std::pair<int64_t, int64_t>, int64_t> count;
    for (size_t i = 0; i < checks.size(); ++i) {
      if (layout.video_files[i].camera != c || checks[i].size.width == 0) continue;
      ++count[{checks[i].size.height, checks[i].size.width}];
    }
    if (count.empty()) continue;
    const auto [height, width] =
        std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) {
          return a.second < b.second;
        })->first;
    for (size_t i = 0; i < checks.size(); ++i) {
      const PictureSize& size = checks[i].size;
      if (layout.video_files[i].camera != c || size.width == 0) continue;
      if (size.height == height && size.width == width) continue;
      findings.error("picture-size", layout.video_files[i].path,
                     fmt::format("its pictures of {} are {} wide and {} high, the others {}x{}",
                                 camera.name, size.width, size.height, width, height),
                     "one size per camera", "convert the video to the size of the others");
    }
    check_declared_shape(camera, {height, width}, "the stream is", "the stream wins", findings);
  }
}

}  // namespace

void check_declared_shape(const CameraInfo& camera, const PictureSize& real, const char* fact,
                          const char* cure, Findings& findings) {
  if (camera.height <= 0 || (camera.height == real.height && camera.width == real.width)) return;
  findings.warn("declared-shape", camera.name,
                fmt::format("declared {} wide and {} high, {} {} wide and {} high", camera.width,
                            camera.height, fact, real.width, real.height),
                "equal sizes", cure);
}

std::vector<PictureSize> check_videos(Layout& layout, ReaderPool& pool, Findings& findings) {
  std::vector<FileCheck> checks(layout.video_files.size());
  for (size_t e = 0; e < layout.episodes.size(); ++e) {
    if (layout.episodes[e].length <= 0) continue;
    for (const VideoSpan& span : layout.episodes[e].spans) {
      if (span.file >= 0) checks[static_cast<size_t>(span.file)].episodes.push_back(e);
    }
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < checks.size(); i = next++) {
      const VideoFile& file = layout.video_files[i];
      if (file.exists) check_file(layout, file, static_cast<int64_t>(i), pool, checks[i]);
    }
  };
  std::vector<std::thread> threads;
  const size_t num_threads =
      std::min<size_t>({checks.size() / 4, 8, std::thread::hardware_concurrency()});
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::vector<PictureSize> sizes;
  for (const FileCheck& check : checks) {
    findings.append(check.findings);
    sizes.push_back(check.size);
  }
  check_sizes(layout, checks, findings);
  return sizes;
}

}  // namespace longship::data::lerobot
