#pragma once
// Exact random access to the frames of a video file. FFmpeg decodes; which packets to feed is
// decided here, from a table of all packets that is built once per file and shared by all readers.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace longship::io {

struct Rational {
  int64_t num = 0;
  int64_t den = 1;
  double value() const {
    return den == 0 ? 0.0 : static_cast<double>(num) / static_cast<double>(den);
  }
};

/// Facts about a video stream. Frames are counted in presentation order; frames cut away by an edit
/// list do not count.
struct VideoInfo {
  std::filesystem::path path;
  std::string container;     // e.g. "mov,mp4,m4a,3gp,3g2,mj2"
  std::string codec;         // e.g. "h264", "av1"
  std::string decoder;       // e.g. "h264", "libdav1d"
  std::string pixel_format;  // of the decoded frames, e.g. "yuv420p"
  int64_t width = 0;         // of the picture that is shown: cropping of the codec is applied
  int64_t height = 0;
  Rational average_fps;               // as the container states or implies it, e.g. 30000/1001
  int64_t num_frames = 0;             // frames whose bytes are there, not a number from a header
  std::vector<double> pts_s;          // [num_frames] presentation times, rising
  double duration_s = 0;              // from the first frame's start to the last frame's end
  std::vector<uint8_t> is_key_frame;  // [num_frames]
  int64_t rotation_deg =
      0;  // display rotation the container asks for; pictures are delivered unrotated
  bool is_depth = false;  // one channel of more than 8 bits: readable with read_gray16 only
};

/// Who decodes. The GPU's decoder gives the same pictures: decoding is exact by the standards of
/// the codecs, and colours are converted on the host in both cases.
enum class VideoDecoder { kCpu, kNvdec };

/// Throws ConfigError saying what is missing unless the driver's decoder works on this machine (the
/// libraries libcuda and libnvcuvid, a device).
void require_nvdec();

/// The packet table of one file: immutable, to be shared by any number of readers in any threads.
/// Holds no open file.
class VideoIndex {
 public:
  /// Reads every packet once and decodes the first frame. Throws DataError naming the file:
  /// missing, not a video, unsupported codec, packets whose bytes are missing, frames without or
  /// with equal timestamps.
  static std::shared_ptr<const VideoIndex> build(const std::filesystem::path& path);
  ~VideoIndex();
  VideoIndex(const VideoIndex&) = delete;
  VideoIndex& operator=(const VideoIndex&) = delete;

  const VideoInfo& info() const;
  /// The frame whose presentation time is nearest to `time_s`, the earlier one of two equally near.
  int64_t nearest_frame(double time_s) const;
  /// Packets that must be decoded to get this frame from a standing start: 1 for a key frame.
  int64_t decode_cost(int64_t frame_idx) const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit VideoIndex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};
using VideoIndexPtr = std::shared_ptr<const VideoIndex>;

/// What a reader has done so far.
struct DecodeStatistics {
  int64_t frames_read = 0;     // pictures delivered
  int64_t frames_decoded = 0;  // frames that came out of the decoder
  int64_t packets_decoded = 0;
  int64_t seeks = 0;  // decoder restarts at a key frame
};

/// Decodes frames of one file. Not thread-safe: one reader per thread; readers of one file share
/// the index. Asking for frames in rising order decodes every packet once; any other order restarts
/// at the key frame before.
class VideoReader {
 public:
  /// Opens the file again. Throws DataError when it is not the file that was indexed (size or time
  /// changed).
  /// With kNvdec also ConfigError when the GPU cannot decode this codec or pixel format.
  explicit VideoReader(VideoIndexPtr index, VideoDecoder decoder = VideoDecoder::kCpu);
  static VideoReader open(const std::filesystem::path& path);
  VideoReader(VideoReader&&) noexcept;
  VideoReader& operator=(VideoReader&&) noexcept;
  ~VideoReader();

  const VideoInfo& info() const;
  const VideoIndexPtr& index() const;

  /// Writes frame `frame_idx` (0 .. num_frames-1, presentation order) to `out`: [height, width, 3]
  /// uint8 RGB, row-major. Colours are those of swscale without scaling: nearest chroma for 8-bit
  /// 4:2:0, the stream's range and matrix (BT.601 when not stated). Throws DataError naming file,
  /// codec and frame: out of range, damaged data, depth video.
  void read_rgb(int64_t frame_idx, uint8_t* out);
  /// Several frames in one pass, strictly rising, each into its own buffer of `out`: packets that
  /// several of them need are decoded once. The pictures are those of read_rgb(). Throws DataError;
  /// the buffers are then partly filled.
  void read_rgb_each(std::span<const int64_t> frames, std::span<uint8_t* const> out);
  /// One frame of a depth video (info().is_depth): [height, width] uint16 in the file's own units.
  void read_gray16(int64_t frame_idx, uint16_t* out);

  const DecodeStatistics& statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Version of the FFmpeg libraries this program runs with.
std::string ffmpeg_version();

}  // namespace longship::io
