#pragma once
// What the video sources share: owners of FFmpeg's objects, the packet table, the frame decoder.
// Only video_*.cpp include this header.

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>
}

#include <functional>
#include <memory>
#include <span>
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
/// Larger pictures are taken for damage: 8192 x 8192.
inline constexpr int64_t kMaxPictureArea = int64_t{1} << 26;

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
  bool is_discarded = false;    // needed to decode others, but outside the edit list
  bool resets_decoder = false;  // a decoder in the middle of a run can go on here without a flush
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
  // Of the first frame as the CPU decodes it.
  AVPixelFormat pixel_format = AV_PIX_FMT_NONE;
  AVColorRange color_range = AVCOL_RANGE_UNSPECIFIED;
  AVColorSpace color_space = AVCOL_SPC_UNSPECIFIED;
  int64_t first_pts = 0;  // of all packets
  int64_t pts_span = 0;   // more than any two presentation times differ; 0 when out of all reason
};

/// What the GPU's decoder needs besides FFmpeg's own. A context of the codec's CUVID decoder, not
/// open yet; ConfigError when there is none for it.
FfmpegPtr<AVCodecContext> nvdec_context(const VideoIndex::Impl& index);
/// Opens it. Throws ConfigError naming the file.
void open_nvdec(AVCodecContext& codec, const VideoIndex::Impl& index);
/// The picture as the CPU would have given it: planes apart, colours described as in the index.
/// `out` keeps its memory from call to call. Throws DataError for another layout.
void to_planes(const AVFrame& frame, const VideoIndex::Impl& index, AVFrame& out);

/// Decodes frames by their index. Holds the codec's state, so rising indices need no restart.
class FrameDecoder {
 public:
  /// Receives a wanted frame: its position in the list, the picture (valid during the call).
  using FrameSink = std::function<void(size_t position, const AVFrame& frame)>;

  explicit FrameDecoder(const VideoIndex::Impl& index, VideoDecoder decoder = VideoDecoder::kCpu);
  /// The frame; valid until the next call. Throws DataError.
  const AVFrame& decode(int64_t frame_idx);
  /// Several frames, strictly rising, in one pass: packets that several of them need are decoded
  /// once, and a codec that reorders is emptied once at the end instead of once per frame. Throws
  /// DataError.
  void decode_each(std::span<const int64_t> frames, const FrameSink& sink);
  DecodeStatistics& statistics() { return statistics_; }
  std::string decoder_name() const { return codec_->codec->name; }

 private:
  // A codec that reorders pictures gives one only after later packets. Where requests jump about,
  // ending the run is cheaper than feeding packets of pictures that nobody asks for; where the next
  // request is near, the run must stay alive.
  static constexpr int kJumpsToDrain = 3;
  enum class Outcome { kFound, kPassed, kFailed };
  /// A picture of the codec: its frame (-1 = of none) and the run it was decoded in.
  struct Output {
    int64_t frame = -1;
    size_t run = 0;
  };
  struct Pass;
  void check_range(int64_t frame_idx) const;
  void note_request(int64_t frame_idx);
  bool can_continue_to(int64_t frame_idx) const;
  void restart(int32_t packet_idx);
  bool chain(int32_t packet_idx);
  void abandon_run();
  Output identify_output();
  bool output_is_damaged() const;
  void hold_output(int64_t frame_idx);
  Outcome run_to(int64_t frame_idx, bool drains);
  bool run_pass(Pass& pass);
  bool start_pass_at(Pass& pass, int64_t frame_idx);
  bool finish_pass(Pass& pass);
  int receive_into(Pass& pass);
  int send_next();
  int drain();
  int64_t run_shift() const;
  int32_t run_start() const { return run_starts_.back(); }
  int32_t key_packet_before(int32_t packet_idx, int64_t count) const;
  [[noreturn]] void fail(int64_t frame_idx, const std::string& reason) const;

  const VideoIndex::Impl& index_;
  FileDescriptor file_;
  FfmpegPtr<AVCodecContext> codec_;
  FfmpegPtr<AVFrame> frame_;  // the codec's latest output
  FfmpegPtr<AVFrame> held_frame_;
  bool can_chain_ = true;
  FfmpegPtr<AVPacket> packet_;
  DecodeStatistics statistics_;
  int64_t held_ = -1;         // index of the frame in held_frame_, -1 = none
  int64_t last_output_ = -1;  // index of the last frame the codec gave in this run
  // Key packets at which the runs since the last flush began; the last one is the present run.
  std::vector<int32_t> run_starts_;
  int32_t next_packet_ = 0;
  bool drained_ = false;  // no packet can follow in this run
  int64_t last_request_ = -1;
  int jumps_in_a_row_ = 0;  // requests that were not shortly behind the one before
  std::string failure_;
};

}  // namespace longship::io
