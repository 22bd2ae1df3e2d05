#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/strings.h"
#include "io/video_ffmpeg.h"

namespace longship::io {
namespace {

thread_local std::string last_log_line;

void keep_log_line(void* source, int level, const char* format, va_list arguments) {
  if (level > AV_LOG_ERROR) return;
  char line[512];
  int print_prefix = 0;  // it holds an address
  av_log_format_line2(source, level, format, arguments, line, sizeof line, &print_prefix);
  const std::string_view text = trim(line);
  if (!text.empty()) last_log_line = text;
}

// Requests this far apart still count as near.
constexpr int64_t kNearFrames = 16;

// Runs between two flushes. Bounds the times given to the codec.
constexpr size_t kMaxChain = 4096;

const AVCodec* find_decoder(AVCodecID id) {
  // Several AV1 decoders may exist and FFmpeg's own needs special hardware; dav1d decodes
  // everything on the CPU.
  const AVCodec* named = id == AV_CODEC_ID_AV1 ? avcodec_find_decoder_by_name("libdav1d") : nullptr;
  return named != nullptr ? named : avcodec_find_decoder(id);
}

}  // namespace

void reset_ffmpeg_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    av_log_set_callback(keep_log_line);
    // A damaged header may ask for any size. The largest honest piece is a table of 30 million
    // frames.
    av_max_alloc(size_t{1} << 30);
  });
  last_log_line.clear();
}

std::string ffmpeg_error(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = {};
  av_strerror(code, text, sizeof text);
  return last_log_line.empty() ? std::string(text)
                               : fmt::format("{} ({})", text, printable(last_log_line, 200));
}

FileDescriptor::FileDescriptor(const std::filesystem::path& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  LS_CHECK(fd_ >= 0, DataError, "{}: the video cannot be opened: {}", path.string(),
           std::strerror(errno));
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FileStamp FileDescriptor::stamp() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return {static_cast<uint64_t>(status.st_size),
          status.st_mtim.tv_sec * int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
}

bool FileDescriptor::read_at(uint64_t offset, void* out, size_t num_bytes) const {
  auto* to = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t count = ::pread(fd_, to, num_bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    to += count;
    offset += static_cast<uint64_t>(count);
    num_bytes -= static_cast<size_t>(count);
  }
  return true;
}

FrameDecoder::FrameDecoder(const VideoIndex::Impl& index, VideoDecoder decoder)
    : index_(index),
      file_(index.info.path),
      frame_(av_frame_alloc()),
      held_frame_(av_frame_alloc()),
      can_chain_(decoder == VideoDecoder::kCpu),
      packet_(av_packet_alloc()) {
  const std::string file = index.info.path.string();
  LS_CHECK(file_.stamp() == index.stamp, DataError,
           "{}: the file has changed since it was indexed; start again", file);
  LS_CHECK(frame_ && held_frame_ && packet_, DataError, "{}: out of memory", file);
  reset_ffmpeg_log();
  if (decoder == VideoDecoder::kNvdec) {
    codec_ = nvdec_context(index);
    open_nvdec(*codec_, index);
    return;
  }
  const AVCodec* codec = find_decoder(index.parameters->codec_id);
  LS_CHECK(codec != nullptr, DataError,
           "{}: no decoder for codec {} in this FFmpeg; convert the video to H.264 or AV1", file,
           index.info.codec);
  codec_.reset(avcodec_alloc_context3(codec));
  LS_CHECK(codec_ != nullptr, DataError, "{}: out of memory", file);
  int result = avcodec_parameters_to_context(codec_.get(), index.parameters.get());
  if (result >= 0) {
    codec_->pkt_timebase = index.time_base;
    codec_->max_pixels = kMaxPictureArea;
    codec_->thread_count = 1;                  // the caller has one reader per thread
    codec_->flags |= AV_CODEC_FLAG_UNALIGNED;  // else a left crop is rounded to the alignment and
                                               // the picture shifts
    // Damaged data must be an error. Without this the codecs conceal it with pixels of other
    // frames.
    codec_->err_recognition = AV_EF_CRCCHECK | AV_EF_EXPLODE;
    result = avcodec_open2(codec_.get(), codec, nullptr);
  }
  LS_CHECK(result >= 0, DataError, "{}: decoder {} for codec {} does not open: {}", file,
           codec->name, index.info.codec, ffmpeg_error(result));
}

void FrameDecoder::restart(int32_t packet_idx) {
  if (!run_starts_.empty()) avcodec_flush_buffers(codec_.get());
  run_starts_.assign(1, packet_idx);
  next_packet_ = packet_idx;
  last_output_ = -1;
  drained_ = false;
  ++statistics_.seeks;
}

// Begins a run at a packet that resets the codec by itself. A flush would make some codecs free all
// their tables and build them again, which costs more than a small picture.
bool FrameDecoder::chain(int32_t packet_idx) {
  if (!can_chain_ || run_starts_.empty() || drained_ || index_.pts_span == 0 ||
      run_starts_.size() >= kMaxChain ||
      !index_.packets[static_cast<size_t>(packet_idx)].resets_decoder) {
    return false;
  }
  run_starts_.push_back(packet_idx);
  next_packet_ = packet_idx;
  last_output_ = -1;
  ++statistics_.seeks;
  return true;
}

/// The next request will flush the codec, whatever it is.
void FrameDecoder::abandon_run() {
  drained_ = true;
  last_output_ = index_.info.num_frames;
}

/// Added to the times of this run's packets. Pictures of earlier runs that the codec still holds
/// come out with other times and are told apart by it.
int64_t FrameDecoder::run_shift() const {
  return static_cast<int64_t>(run_starts_.size() - 1) * index_.pts_span;
}

int FrameDecoder::drain() {
  drained_ = true;
  return avcodec_send_packet(codec_.get(), nullptr);
}

int FrameDecoder::send_next() {
  if (next_packet_ == static_cast<int32_t>(index_.packets.size())) return drain();
  const PacketEntry& entry = index_.packets[static_cast<size_t>(next_packet_)];
  av_packet_unref(packet_.get());
  int result = av_new_packet(packet_.get(), entry.size);
  if (result < 0) return result;
  if (entry.in_file) {
    if (!file_.read_at(entry.offset, packet_->data, static_cast<size_t>(entry.size)))
      return AVERROR(EIO);
  } else {
    std::memcpy(packet_->data, index_.stored.data() + entry.offset,
                static_cast<size_t>(entry.size));
  }
  packet_->pts = entry.pts + run_shift();
  packet_->dts = entry.dts == AV_NOPTS_VALUE ? entry.dts : entry.dts + run_shift();
  packet_->flags =
      (entry.is_key ? AV_PKT_FLAG_KEY : 0) | (entry.is_discarded ? AV_PKT_FLAG_DISCARD : 0);
  ++next_packet_;
  ++statistics_.packets_decoded;
  result = avcodec_send_packet(codec_.get(), packet_.get());
  // Pictures shown before the key frame at which this run began lack what they refer to. They are
  // not wanted.
  const bool is_leading = entry.pts < index_.packets[static_cast<size_t>(run_start())].pts;
  return result < 0 && is_leading ? 0 : result;
}

FrameDecoder::Output FrameDecoder::identify_output() {
  ++statistics_.frames_decoded;
  int64_t pts = frame_->pts != AV_NOPTS_VALUE ? frame_->pts : frame_->best_effort_timestamp;
  if (pts == AV_NOPTS_VALUE || pts < index_.first_pts) return {};
  Output output;
  if (index_.pts_span > 0) {
    output.run = static_cast<size_t>((pts - index_.first_pts) / index_.pts_span);
    pts -= static_cast<int64_t>(output.run) * index_.pts_span;
  }
  const auto found = std::lower_bound(index_.pts.begin(), index_.pts.end(), pts);
  if (found == index_.pts.end() || *found != pts || output.run >= run_starts_.size()) return {};
  output.frame = found - index_.pts.begin();  // else outside the edit list
  return output;
}

bool FrameDecoder::output_is_damaged() const {
  return frame_->decode_error_flags != 0 || (frame_->flags & AV_FRAME_FLAG_CORRUPT) != 0;
}

void FrameDecoder::hold_output(int64_t frame_idx) {
  frame_.swap(held_frame_);
  held_ = frame_idx;
}

FrameDecoder::Outcome FrameDecoder::run_to(int64_t frame_idx, bool drains) {
  while (true) {
    int result = avcodec_receive_frame(codec_.get(), frame_.get());
    if (result == 0) {
      const Output output = identify_output();
      if (output.frame < 0 || output.run + 1 != run_starts_.size()) continue;
      last_output_ = output.frame;
      if (last_output_ < frame_idx) continue;
      if (last_output_ > frame_idx) {
        failure_ = "the decoder gave a later frame instead";
        return Outcome::kPassed;
      }
      if (output_is_damaged()) {
        failure_ = "the decoder reports damaged data";
        return Outcome::kFailed;
      }
      return Outcome::kFound;
    }
    if (result == AVERROR(EAGAIN) && !drained_) {
      const bool all_sent = next_packet_ > index_.packet_of_frame[static_cast<size_t>(frame_idx)];
      result = all_sent && drains ? drain() : send_next();
    }
    if (result == AVERROR_EOF) {
      failure_ = "the decoder gave no picture for it";
      return Outcome::kPassed;
    }
    if (result < 0) {
      failure_ = ffmpeg_error(result);
      return Outcome::kFailed;
    }
  }
}

int32_t FrameDecoder::key_packet_before(int32_t packet_idx, int64_t count) const {
  for (; packet_idx > 0 && count > 0; --count) {
    do {
      --packet_idx;
    } while (packet_idx > 0 && !index_.packets[static_cast<size_t>(packet_idx)].is_key);
  }
  return packet_idx;
}

void FrameDecoder::check_range(int64_t frame_idx) const {
  if (frame_idx < 0 || frame_idx >= index_.info.num_frames) {
    fail(frame_idx, fmt::format("the video has {} frames", index_.info.num_frames));
  }
}

void FrameDecoder::note_request(int64_t frame_idx) {
  const bool is_jump = frame_idx <= last_request_ || frame_idx > last_request_ + kNearFrames;
  jumps_in_a_row_ = is_jump ? jumps_in_a_row_ + 1 : 0;
  last_request_ = frame_idx;
}

bool FrameDecoder::can_continue_to(int64_t frame_idx) const {
  const int32_t start = index_.start_of_frame[static_cast<size_t>(frame_idx)];
  if (run_starts_.empty() || frame_idx <= last_output_ || start < run_start()) return false;
  // While draining, frames still come out in order, but no packet can follow.
  if (drained_) return index_.packet_of_frame[static_cast<size_t>(frame_idx)] < next_packet_;
  return start <= next_packet_;
}

const AVFrame& FrameDecoder::decode(int64_t frame_idx) {
  check_range(frame_idx);
  if (frame_idx == held_) return *held_frame_;
  reset_ffmpeg_log();
  note_request(frame_idx);
  int32_t start = index_.start_of_frame[static_cast<size_t>(frame_idx)];
  const bool continues = can_continue_to(frame_idx) || chain(start);
  if (!continues) restart(start);
  const bool drains = jumps_in_a_row_ >= kJumpsToDrain;
  Outcome outcome = run_to(frame_idx, drains);
  const std::string reason = failure_;
  // From now on with no packet that the frame does not need: a damaged one behind it must not
  // count.
  if (outcome != Outcome::kFound && (continues || !drains)) {
    restart(start);
    outcome = run_to(frame_idx, true);
  }
  // A key flag does not promise that decoding can start there (gradual refresh, wrong flags), so
  // the ones before are tried, at doubling distance: together they cost no more than twice the
  // whole file.
  for (int64_t step = 1; outcome != Outcome::kFound && start > 0; step *= 2) {
    start = key_packet_before(start, step);
    restart(start);
    outcome = run_to(frame_idx, true);
  }
  if (outcome != Outcome::kFound) {
    abandon_run();
    fail(frame_idx, reason);
  }
  hold_output(frame_idx);
  return *held_frame_;
}

void FrameDecoder::fail(int64_t frame_idx, const std::string& reason) const {
  throw DataError(fmt::format("{}: codec {}: frame {} cannot be read: {}",
                              index_.info.path.string(), index_.info.codec, frame_idx, reason));
}

}  // namespace longship::io
