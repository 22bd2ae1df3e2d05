// Every frame decoded once: does it decode, does it change, does it show anything?

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "data/lerobot/check_deep.h"
#include "data/lerobot/picture_watch.h"

namespace longship::data::lerobot {

namespace {

constexpr int64_t kMaxFaultsPerEpisode = 20;
// Work is handed out in pieces of about so many frames, so that one long video keeps all threads
// busy and each still decodes long stretches without a jump.
constexpr int64_t kFramesPerTask = 2000;

/// Neighbouring episodes of one video file; or one episode of a camera whose pictures lie in the
/// tables.
struct Task {
  std::vector<size_t> episodes;
  size_t camera = 0;
  int64_t file = -1;  // -1: pictures lie in the tables
  int64_t num_frames = 0;
  Findings findings;
  CameraPixels pixels;
};

/// Smallest and largest state per dimension over the whole dataset.
struct StateRange {
  const ColumnData* column = nullptr;
  std::vector<float> span;  // high - low

  explicit StateRange(const Table& table) {
    for (const char* name : {"observation.state", "action"}) {
      const auto found = table.columns.find(name);
      if (found == table.columns.end() || !found->second.sound) continue;
      column = &found->second;
      break;
    }
    if (column == nullptr || column->values.empty()) return;
    const auto width = static_cast<size_t>(column->width);
    std::vector<float> low(column->values.begin(), column->values.begin() + column->width);
    std::vector<float> high = low;
    for (size_t i = 0; i < column->values.size(); ++i) {
      low[i % width] = std::min(low[i % width], column->values[i]);
      high[i % width] = std::max(high[i % width], column->values[i]);
    }
    for (size_t d = 0; d < width; ++d) span.push_back(high[d] - low[d]);
  }

  /// Whether a dimension runs through at least a fiftieth of its range within these rows.
  bool moves(int64_t begin_row, int64_t num_rows) const {
    if (span.empty()) return false;
    const auto width = static_cast<size_t>(column->width);
    for (size_t d = 0; d < width; ++d) {
      float low = INFINITY, high = -INFINITY;
      for (int64_t r = begin_row; r < begin_row + num_rows; ++r) {
        const float x = column->values[static_cast<size_t>(r) * width + d];
        low = std::min(low, x);
        high = std::max(high, x);
      }
      if (high - low > 0.02F * span[d] && high > low) return true;
    }
    return false;
  }
};

struct Context {
  const Opened& opened;
  StateRange state;
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  int64_t total = 0;
  std::mutex mutex;
  const std::function<void(int64_t, int64_t)>& progress;

  void advance() {
    const int64_t now = ++done;
    if (!progress || now % 32 != 0) return;
    const std::lock_guard lock(mutex);
    progress(now, total);
  }
};

void judge_episode(const Context& context, const std::string& camera, const EpisodeRecord& episode,
                   const PictureWatch& watch, Findings& findings) {
  if (!watch.is_judged()) return;
  const std::string place = fmt::format("{}, episode {}", camera, episode.index);
  if (2 * watch.num_black() > watch.num_frames()) {
    findings.warn("camera-black", place,
                  fmt::format("{} of {} pictures are black", watch.num_black(), watch.num_frames()),
                  "pictures of the scene",
                  "look at them: longship dataset show --episode " + std::to_string(episode.index));
    return;
  }
  if (2 * watch.num_flat() > watch.num_frames()) {
    findings.warn(
        "camera-flat", place,
        fmt::format("{} of {} pictures have one colour", watch.num_flat(), watch.num_frames()),
        "pictures of the scene",
        "look at them: longship dataset show --episode " + std::to_string(episode.index));
    return;
  }
  // Half of the episode, or two seconds of a long one.
  const auto two_seconds = static_cast<int64_t>(std::ceil(2 * context.opened.layout.info.fps));
  const int64_t limit = std::max<int64_t>(5, std::min((episode.length + 1) / 2, two_seconds));
  if (watch.longest() < limit) return;
  if (!context.state.moves(episode.row_begin + watch.longest_begin(), watch.longest())) return;
  findings.warn("camera-frozen", place,
                fmt::format("one picture is repeated for {} frames, {}..{}, while the state moves",
                            watch.longest(), watch.longest_begin(),
                            watch.longest_begin() + watch.longest() - 1),
                "pictures that change with the robot",
                "look at them: longship dataset show --episode " + std::to_string(episode.index));
}

void decode_episode(Context& context, int64_t file, const EpisodeRecord& episode, Task& task) {
  const Layout& layout = context.opened.layout;
  const VideoFile& video = layout.video_files[static_cast<size_t>(file)];
  const CameraInfo& camera = layout.info.cameras[video.camera];
  ReaderPool::Lease lease = context.opened.pool->acquire(file);
  const io::VideoInfo info = lease.reader().info();
  const bool depth = info.is_depth;
  std::vector<uint8_t> rgb(static_cast<size_t>(info.height * info.width * 3));
  std::vector<uint16_t> gray(depth ? static_cast<size_t>(info.height * info.width) : 0);
  PictureWatch watch(info.height, info.width);
  int64_t frame = 0, faults = 0;
  for (; frame < episode.length; ++frame) {
    try {
      const int64_t in_video = episode.spans[video.camera].first_frame + frame;
      if (depth) {
        lease.reader().read_gray16(in_video, gray.data());
      } else {
        lease.reader().read_rgb(in_video, rgb.data());
        task.pixels.stats.add(rgb);
      }
    } catch (const Error& error) {
      ++faults;
      task.findings.error(
          "frame-damaged",
          fmt::format("{}, episode {}, frame {}", camera.name, episode.index, frame), error.what(),
          "a picture that decodes",
          "record or convert the video again, or leave the episode out: longship "
          "dataset split");
      if (faults == kMaxFaultsPerEpisode) {
        task.findings.error(
            "frame-damaged", fmt::format("{}, episode {}", camera.name, episode.index),
            fmt::format("{} pictures are damaged, the rest was not looked at", faults));
        lease.discard();
        return;
      }
      context.advance();
      continue;
    }
    if (!depth) watch.add(rgb);
    ++task.pixels.num_frames;
    context.advance();
  }
  if (faults > 0) {
    lease.discard();
  } else if (!depth) {
    judge_episode(context, camera.name, episode, watch, task.findings);
  }
}

/// Pictures in the tables: one task per camera and episode.
void decode_stored(Context& context, size_t camera, const EpisodeRecord& episode, Task& task) {
  const std::string& name = context.opened.layout.info.cameras[camera].name;
  std::optional<PictureWatch> watch;
  int64_t faults = 0, height = 0, width = 0;
  for (int64_t frame = 0; frame < episode.length; ++frame) {
    context.advance();
    try {
      const ImagePtr image = context.opened.images->read(camera, episode.row_begin + frame);
      if (!watch) watch.emplace(height = image->height, width = image->width);
      if (image->height != height || image->width != width) return;  // reported already
      watch->add(image->rgb);
      task.pixels.stats.add(image->rgb);
      ++task.pixels.num_frames;
    } catch (const std::exception& error) {
      // Heads were read already; what they do not tell comes out here.
      if (++faults > kMaxFaultsPerEpisode) return;
      task.findings.error("frame-damaged",
                          fmt::format("{}, episode {}, frame {}", name, episode.index, frame),
                          error.what(), "a picture that decodes",
                          "restore the picture, or leave the episode out: longship dataset repair "
                          "--drop-episodes");
    }
  }
  if (faults == 0 && watch) judge_episode(context, name, episode, *watch, task.findings);
}

void decode_file(Context& context, int64_t file, Task& task) {
  const Layout& layout = context.opened.layout;
  for (const size_t position : task.episodes) {
    const EpisodeRecord& episode = layout.episodes[position];
    try {
      decode_episode(context, file, episode, task);
    } catch (const std::exception& error) {  // none may leave the thread
      task.findings.error("video-unreadable", layout.video_files[static_cast<size_t>(file)].path,
                          fmt::format("{}; it holds episode {}", error.what(), episode.index),
                          "a video that FFmpeg decodes", "restore the file or convert it");
      return;
    }
  }
}

// A camera whose heads are at fault is reported already, picture by picture.
std::vector<bool> readable_cameras(const Info& info, const Findings& findings) {
  std::vector<bool> readable(info.cameras.size(), true);
  for (const Finding& finding : findings.list()) {
    if (finding.code != "picture-unreadable" && finding.code != "picture-depth" &&
        finding.code != "column") {
      continue;
    }
    for (size_t camera = 0; camera < readable.size(); ++camera) {
      const std::string& name = info.cameras[camera].name;
      if (finding.place.find(name) != std::string::npos) readable[camera] = false;
    }
  }
  return readable;
}

std::vector<Task> make_tasks(const Opened& opened, const Findings& findings) {
  const Layout& layout = opened.layout;
  const std::vector<bool> readable = readable_cameras(layout.info, findings);
  std::vector<Task> tasks;
  std::vector<int64_t> open_task(layout.video_files.size(), -1);  // of each file, into tasks
  for (size_t e = 0; e < layout.episodes.size(); ++e) {
    const EpisodeRecord& episode = layout.episodes[e];
    const bool placed = episode.row_end - episode.row_begin == episode.length &&
                        episode.row_begin >= 0 && episode.row_end <= opened.table.num_rows;
    if (episode.length <= 0 || !placed) continue;
    for (const VideoSpan& span : episode.spans) {
      if (span.file < 0) continue;
      const auto file = static_cast<size_t>(span.file);
      // Sizes are known of readable files only; spans outside the video are reported already.
      if (!layout.video_files[file].exists || opened.sizes[file].width == 0) continue;
      const int64_t available = opened.pool->index(span.file)->info().num_frames;
      if (span.first_frame < 0 || span.first_frame + episode.length > available) continue;
      if (open_task[file] < 0) {
        open_task[file] = static_cast<int64_t>(tasks.size());
        tasks.emplace_back();
        tasks.back().camera = layout.video_files[file].camera;
        tasks.back().file = span.file;
      }
      Task& task = tasks[static_cast<size_t>(open_task[file])];
      task.episodes.push_back(e);
      task.num_frames += episode.length;
      if (task.num_frames >= kFramesPerTask) open_task[file] = -1;
    }
    if (!opened.table.file_sound[static_cast<size_t>(episode.data_file)]) continue;
    for (size_t camera = 0; camera < layout.info.cameras.size(); ++camera) {
      if (layout.info.cameras[camera].is_video || !readable[camera]) continue;
      Task& task = tasks.emplace_back();
      task.episodes = {e};
      task.camera = camera;
      task.num_frames = episode.length;
    }
  }
  return tasks;
}

}  // namespace

std::map<std::string, CameraPixels> check_pictures(
    const Opened& opened, int64_t threads, const std::function<void(int64_t, int64_t)>& progress,
    Findings& findings) {
  const Layout& layout = opened.layout;
  std::vector<Task> tasks = make_tasks(opened, findings);
  Context context{opened, StateRange(opened.table), {}, {}, 0, {}, progress};
  for (const Task& task : tasks) context.total += task.num_frames;
  const auto work = [&] {
    for (size_t i = context.next++; i < tasks.size(); i = context.next++) {
      Task& task = tasks[i];
      if (task.file < 0) {
        decode_stored(context, task.camera, layout.episodes[task.episodes.front()], task);
      } else {
        decode_file(context, task.file, task);
      }
    }
  };
  std::vector<std::thread> pool;
  for (int64_t i = 1; i < std::min<int64_t>(threads, static_cast<int64_t>(tasks.size())); ++i) {
    pool.emplace_back(work);
  }
  work();
  for (std::thread& thread : pool) thread.join();
  std::map<std::string, CameraPixels> pixels;
  for (const Task& task : tasks) {
    findings.append(task.findings);
    CameraPixels& camera = pixels[layout.info.cameras[task.camera].name];
    camera.stats.merge(task.pixels.stats);
    camera.num_frames += task.pixels.num_frames;
  }
  return pixels;
}

}  // namespace longship::data::lerobot
