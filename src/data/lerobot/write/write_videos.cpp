#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "data/lerobot/write/write_files.h"
#include "io/video_concat.h"

namespace longship::data::lerobot {

namespace {

namespace fs = std::filesystem;

/// Neighbouring episodes whose frames are neighbours in one video: written as one piece.
struct Run {
  size_t begin = 0, end = 0;  // episodes of the plan
  int64_t file = -1;          // of the source
  int64_t first_frame = 0, num_frames = 0;
  int64_t bytes = 0;  // about
};

class CameraWriter {
 public:
  CameraWriter(const fs::path& target, Plan& plan, size_t camera, Progress& progress)
      : target_(target), plan_(plan), camera_(camera), progress_(progress) {}

  void write(int64_t& done) {
    for (size_t e = 0; e < plan_.episodes.size();) {
      const Run run = run_from(e);
      write_run(run);
      done += run.num_frames;
      progress_.update(done);
      e = run.end;
    }
    finish();
  }

 private:
  const VideoSpan& span(size_t episode) const {
    return plan_.record(plan_.episodes[episode]).spans[camera_of(episode)];
  }
  // Cameras are matched by name: their order may differ between sources.
  size_t camera_of(size_t episode) const {
    const std::string& name = plan_.info().cameras[camera_].name;
    const auto& cameras = plan_.layout(plan_.episodes[episode].source).info.cameras;
    return static_cast<size_t>(
        std::find_if(cameras.begin(), cameras.end(),
                     [&](const CameraInfo& camera) { return camera.name == name; }) -
        cameras.begin());
  }
  io::VideoIndexPtr index_of(const Run& run) const {
    return plan_.sources[plan_.episodes[run.begin].source]->opened.pool->index(run.file);
  }

  Run run_from(size_t begin) const;
  void write_run(const Run& run);
  void copy_whole(const Run& run, const io::VideoIndex& index);
  void finish();
  fs::path path() const {
    return target_ /
           fill_template(plan_.video_path, {{"video_key", plan_.info().cameras[camera_].name},
                                            {"chunk_index", number_.chunk},
                                            {"file_index", number_.file}});
  }
  void place(const Run& run, int64_t first, double rate) {
    for (size_t e = run.begin; e < run.end; ++e) {
      const int64_t length = plan_.record(plan_.episodes[e]).length;
      PlacedSpan& placed = plan_.episodes[e].spans[camera_];
      placed.chunk = number_.chunk;
      placed.file = number_.file;
      const int64_t from = first + span(e).first_frame - run.first_frame;
      placed.from_s = static_cast<double>(from) / rate;
      placed.to_s = static_cast<double>(from + length) / rate;
    }
  }

  fs::path target_;
  Plan& plan_;
  size_t camera_;
  Progress& progress_;
  FileNumber number_;
  std::unique_ptr<io::VideoConcat> out_;
  fs::path out_path_;
  bool used_ = false;  // the file of number_ exists
};

Run CameraWriter::run_from(size_t begin) const {
  Run run;
  run.begin = begin;
  run.end = begin + 1;
  run.file = span(begin).file;
  run.first_frame = span(begin).first_frame;
  run.num_frames = plan_.record(plan_.episodes[begin]).length;
  const size_t source = plan_.episodes[begin].source;
  const io::VideoIndexPtr index = index_of(run);
  std::error_code code;
  const double frame_bytes = static_cast<double>(fs::file_size(index->info().path, code)) /
                             static_cast<double>(index->info().num_frames);
  const auto bytes_of = [&](int64_t frames) {
    return static_cast<int64_t>(frame_bytes * static_cast<double>(frames));
  };
  while (run.end < plan_.episodes.size() && plan_.episodes[run.end].source == source &&
         span(run.end).file == run.file &&
         span(run.end).first_frame == run.first_frame + run.num_frames) {
    const int64_t length = plan_.record(plan_.episodes[run.end]).length;
    if (bytes_of(run.num_frames + length) > plan_.options.video_file_bytes) break;
    run.num_frames += length;
    ++run.end;
  }
  run.bytes = bytes_of(run.num_frames);
  return run;
}

void CameraWriter::finish() {
  if (out_ == nullptr) return;
  const int64_t expected = out_->num_frames();
  out_->close();
  out_.reset();
  const io::VideoIndexPtr written = io::VideoIndex::build(out_path_);
  LS_CHECK(written->info().num_frames == expected, InternalError,
           "{}: {} frames were written, it reads back {}", out_path_.string(), expected,
           written->info().num_frames);
}

void CameraWriter::write_run(const Run& run) {
  const io::VideoIndexPtr index = index_of(run);
  const bool full = out_ != nullptr && static_cast<int64_t>(out_->bytes_written()) + run.bytes >
                                           plan_.options.video_file_bytes;
  if (full || (out_ != nullptr && !out_->accepts(*index, run.first_frame, run.num_frames))) {
    finish();
  }
  if (out_ == nullptr) {
    if (used_) number_.next(plan_.options.files_per_chunk);
    used_ = true;
    out_path_ = path();
    fs::create_directories(out_path_.parent_path());
    out_ = std::make_unique<io::VideoConcat>(out_path_, plan_.rate);
  }
  if (!out_->accepts(*index, run.first_frame, run.num_frames)) {
    out_.reset();
    copy_whole(run, *index);
    return;
  }
  const int64_t first = out_->append(*index, run.first_frame, run.num_frames);
  place(run, first, plan_.rate.value());
}

// Spans skip the frames that belong to no episode.
void CameraWriter::copy_whole(const Run& run, const io::VideoIndex& index) {
  fs::copy_file(index.info().path, out_path_);
  fs::permissions(out_path_, fs::perms::owner_write, fs::perm_options::add);
  const double rate = index.info().average_fps.value();
  place(run, run.first_frame, rate > 0 ? rate : plan_.rate.value());
}

}  // namespace

void write_videos(const fs::path& target, Plan& plan, Progress& progress) {
  int64_t done = 0;
  for (size_t camera = 0; camera < plan.info().cameras.size(); ++camera) {
    if (!plan.info().cameras[camera].is_video) continue;
    CameraWriter(target, plan, camera, progress).write(done);
  }
}

}  // namespace longship::data::lerobot
