#pragma once
// What the video sources share: owners of FFmpeg's objects, the packet table, the frame decoder.
// Only video_*.cpp include this header.

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <memory>
#include <string>
#include <vector>

#include "io/video.h"

namespace longship::io {

struct FfmpegFree {
  void operator()(AVFormatContext* p) const { avformat_close_input(&p); }
  void operator()(AVCodecContext* p) const { avcodec_free_context(&p); }
  void operator()(AVCodecParameters* p) const { avcodec_parameters_free(&p); }
  void operator()(AVFrame* p) const { av_frame_free(&p); }
  void operator()(AVPacket* p) const { av_packet_free(&p); }
  void operator()(SwsContext* p) const { sws_freeContext(p); }
};
template <class T>
using FfmpegPtr = std::unique_ptr<T, FfmpegFree>;

/// FFmpeg's text for an error code, with the last message it logged in this thread.
std::string ffmpeg_error(int code);
/// Forgets the message, so that ffmpeg_error() reports what follows. Also keeps FFmpeg from writing
/// to stderr.
void reset_ffmpeg_log();

/// One packet of the video stream, in file order.
struct PacketEntry {
  uint64_t offset = 0;  // of its bytes in the file, or in VideoIndex::Impl::stored
  int32_t size = 0;
  bool in_file =
      true;  // false: the container stores it in another form, so the bytes are kept in memory
  bool is_key = false;
  bool is_discarded = false;  // needed to decode others, but outside the edit list
  int64_t pts = 0;
  int64_t dts = 0;
};

/// Size and time of change tell whether a file is still the one that was indexed.
struct FileStamp {
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

/// An open file descriptor with positioned reads.
class FileDescriptor {
 public:
  explicit FileDescriptor(const std::filesystem::path& path);  // DataError
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor();
  FileStamp stamp() const;
  /// False when fewer bytes are there.
  bool read_at(uint64_t offset, void* out, size_t num_bytes) const;
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

struct VideoIndex::Impl {
  VideoInfo info;
  FileStamp stamp;
  AVRational time_base{0, 1};
  FfmpegPtr<AVCodecParameters> parameters;
  std::vector<PacketEntry> packets;
  std::vector<uint8_t> stored;           // bytes of packets that are not verbatim in the file
  std::vector<int64_t> pts;              // [num_frames] rising, in time_base
  std::vector<int32_t> packet_of_frame;  // [num_frames]
  std::vector<int32_t>
      start_of_frame;  // [num_frames] key packet from which the frame can be decoded
};

/// Decodes single frames by their index. Holds the codec's state, so rising indices need no
/// restart.
class FrameDecoder {
 public:
  explicit FrameDecoder(const VideoIndex::Impl& index);
  /// The frame; valid until the next call. Throws DataError.
  const AVFrame& decode(int64_t frame_idx);
  DecodeStatistics& statistics() { return statistics_; }
  std::string decoder_name() const { return codec_->codec->name; }

 private:
  enum class Outcome { kFound, kPassed, kFailed };
  void restart(int32_t packet_idx);
  Outcome run_to(int64_t frame_idx);
  int send_next();
  int drain();
  int32_t key_packet_before(int32_t packet_idx, int64_t count) const;
  [[noreturn]] void fail(int64_t frame_idx, const std::string& reason) const;

  const VideoIndex::Impl& index_;
  FileDescriptor file_;
  FfmpegPtr<AVCodecContext> codec_;
  FfmpegPtr<AVFrame> frame_;
  FfmpegPtr<AVPacket> packet_;
  DecodeStatistics statistics_;
  int64_t held_ = -1;         // index of the frame in frame_, -1 = none
  int64_t last_output_ = -1;  // index of the last frame the codec gave in this run
  int32_t run_start_ = -1;    // key packet at which this run began, -1 = no run
  int32_t next_packet_ = 0;
  bool drained_ = false;  // no packet can follow in this run
  int64_t last_request_ = -1;
  int jumps_in_a_row_ = 0;  // requests that were not shortly behind the one before
  std::string failure_;
};

}  // namespace longship::io
