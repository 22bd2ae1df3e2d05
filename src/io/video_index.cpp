#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

extern "C" {
#include <libavutil/display.h>
}

#include "base/error.h"
#include "base/strings.h"
#include "io/video_ffmpeg.h"
#include "io/video_h264.h"

namespace longship::io {
namespace {

constexpr size_t kMaxBlockHeader =
    64;  // bytes between a packet's recorded position and its data, e.g. Matroska's block head

/// No honest time is larger, in any time base.
constexpr int64_t kMostTime = int64_t{1} << 60;

bool is_honest_time(int64_t time) {
  return time > -kMostTime && time < kMostTime;
}

/// Read-only mapping, for comparing packets with the bytes of the file.
struct Mapping {
  const uint8_t* data = nullptr;
  size_t bytes = 0;
  Mapping(const FileDescriptor& file, size_t size) : bytes(size) {
    void* address =
        bytes == 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address != MAP_FAILED) data = static_cast<const uint8_t*>(address);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (data != nullptr) ::munmap(const_cast<uint8_t*>(data), bytes);
  }
};

/// avformat_find_stream_info with a bound on the pictures it decodes.
int find_stream_info(AVFormatContext& container) {
  std::vector<AVDictionary*> options(container.nb_streams, nullptr);
  for (AVDictionary*& one : options) av_dict_set_int(&one, "max_pixels", kMaxPictureArea, 0);
  const int result = avformat_find_stream_info(&container, options.data());
  for (AVDictionary*& one : options) av_dict_free(&one);
  return result;
}

FfmpegPtr<AVFormatContext> open_container(const std::string& file) {
  // Only containers that hold their own data, only the file protocol: a playlist could name other
  // files or hosts.
  AVDictionary* options = nullptr;
  av_dict_set(&options, "format_whitelist", "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi", 0);
  av_dict_set(&options, "protocol_whitelist", "file", 0);
  AVFormatContext* raw = nullptr;
  reset_ffmpeg_log();
  int result = avformat_open_input(&raw, ("file:" + file).c_str(), nullptr, &options);
  av_dict_free(&options);
  LS_CHECK(result >= 0, DataError, "{}: cannot be read as a video (MP4, Matroska, AVI): {}", file,
           ffmpeg_error(result));
  FfmpegPtr<AVFormatContext> container(raw);
  // MP4 and Matroska state times and key frames themselves; looking into every packet for them
  // takes twice as long as reading it.
  const std::string_view format = container->iformat->name;
  if (format.find("mp4") != format.npos || format.find("matroska") != format.npos) {
    container->flags |= AVFMT_FLAG_NOPARSE;
  }
  result = find_stream_info(*container);
  LS_CHECK(result >= 0, DataError, "{}: the streams of the video cannot be read: {}", file,
           ffmpeg_error(result));
  return container;
}

/// Where the packet's bytes are in the file; appends them to `stored` when they are not there
/// verbatim.
void locate_bytes(const AVPacket& packet, const Mapping& mapping, PacketEntry& entry,
                  std::vector<uint8_t>& stored) {
  const auto size = static_cast<size_t>(packet.size);
  if (packet.pos >= 0 && mapping.data != nullptr) {
    const auto pos = static_cast<size_t>(packet.pos);
    for (size_t skip = 0; skip <= kMaxBlockHeader && pos + skip + size <= mapping.bytes; ++skip) {
      if (std::memcmp(mapping.data + pos + skip, packet.data, size) == 0) {
        entry.offset = pos + skip;
        return;
      }
    }
  }
  entry.in_file = false;
  entry.offset = stored.size();
  stored.insert(stored.end(), packet.data, packet.data + size);
}

/// What is known about the packets of an H.264 stream besides their places.
class H264Facts {
 public:
  explicit H264Facts(const AVCodecParameters& codec)
      : scanner_(codec.codec_id == AV_CODEC_ID_H264
                     ? std::span<const uint8_t>(codec.extradata,
                                                static_cast<size_t>(codec.extradata_size))
                     : std::span<const uint8_t>()) {}

  void note(const AVPacket& packet, PacketEntry& entry) {
    if (!scanner_.is_usable()) return;
    const H264Packet facts = scanner_.scan({packet.data, static_cast<size_t>(packet.size)});
    entry.resets_decoder = entry.is_key && facts.is_idr;
    repeated_bytes_.push_back(static_cast<int32_t>(facts.repeated_bytes));
    keeps_header_ = keeps_header_ && !facts.has_own_sets &&
                    av_packet_get_side_data(&packet, AV_PKT_DATA_NEW_EXTRADATA, nullptr) == nullptr;
  }
  /// Encoders repeat the header before every key picture, and the decoder then builds the same
  /// large tables again. Cuts the copies off, unless one differs anywhere in the stream.
  void cut_repeated_headers(std::vector<PacketEntry>& packets) const {
    if (!keeps_header_ || repeated_bytes_.size() != packets.size()) return;
    for (size_t i = 0; i < packets.size(); ++i) {
      packets[i].offset += static_cast<uint64_t>(repeated_bytes_[i]);
      packets[i].size -= repeated_bytes_[i];
    }
  }

 private:
  H264Scanner scanner_;
  std::vector<int32_t> repeated_bytes_;
  bool keeps_header_ = true;
};

/// Reads all packets of the stream. Returns the end time of the last one shown, in the stream's
/// time base.
int64_t read_packets(AVFormatContext& container, const AVStream& stream, const Mapping& mapping,
                     VideoIndex::Impl& index) {
  const std::string file = index.info.path.string();
  FfmpegPtr<AVPacket> packet(av_packet_alloc());
  H264Facts h264(*stream.codecpar);
  int64_t end = AV_NOPTS_VALUE;
  reset_ffmpeg_log();
  int result = 0;
  while ((result = av_read_frame(&container, packet.get())) >= 0) {
    if (packet->stream_index == stream.index) {
      const size_t number = index.packets.size();
      LS_CHECK(packet->size > 0 && (packet->flags & AV_PKT_FLAG_CORRUPT) == 0, DataError,
               "{}: the bytes of packet {} are missing or cut: the file lists more frames than it "
               "holds; copy or record it "
               "again",
               file, number);
      LS_CHECK(number < INT32_MAX, DataError, "{}: too many packets", file);
      PacketEntry entry;
      entry.size = packet->size;
      entry.is_key = (packet->flags & AV_PKT_FLAG_KEY) != 0;
      entry.is_discarded = (packet->flags & AV_PKT_FLAG_DISCARD) != 0;
      entry.dts = packet->dts;
      // A container without presentation times (AVI) is exact only where no picture is reordered.
      entry.pts = packet->pts != AV_NOPTS_VALUE || stream.codecpar->video_delay > 0 ? packet->pts
                                                                                    : packet->dts;
      LS_CHECK(entry.pts != AV_NOPTS_VALUE, DataError,
               "{}: packet {} has no presentation time; remux the video to MP4", file, number);
      // Sums of times below stay in range whatever a damaged file states.
      const int64_t duration = std::clamp<int64_t>(packet->duration, 0, kMostTime);
      LS_CHECK(is_honest_time(entry.pts), DataError,
               "{}: packet {} has the presentation time {}; the file is damaged", file, number,
               entry.pts);
      if (!is_honest_time(entry.dts)) entry.dts = AV_NOPTS_VALUE;
      h264.note(*packet, entry);
      locate_bytes(*packet, mapping, entry, index.stored);
      if (!entry.is_discarded) end = std::max(end, entry.pts + duration);
      index.packets.push_back(entry);
    }
    av_packet_unref(packet.get());
  }
  LS_CHECK(result == AVERROR_EOF, DataError,
           "{}: reading stops after {} packets: {}; the file is cut or damaged", file,
           index.packets.size(), ffmpeg_error(result));
  const int64_t listed = avformat_index_get_entries_count(&stream);
  const bool index_is_complete = std::strstr(container.iformat->name, "mp4") != nullptr;
  LS_CHECK(
      !index_is_complete || listed <= static_cast<int64_t>(index.packets.size()), DataError,
      "{}: the file lists {} frames but holds the bytes of {}; it is cut, copy or record it again",
      file, listed, index.packets.size());
  h264.cut_repeated_headers(index.packets);
  return end;
}

/// Presentation order, and for every frame the key packet to start from.
void order_frames(VideoIndex::Impl& index) {
  const std::string file = index.info.path.string();
  const std::vector<PacketEntry>& packets = index.packets;
  for (size_t i = 0; i < packets.size(); ++i) {
    if (!packets[i].is_discarded) index.packet_of_frame.push_back(static_cast<int32_t>(i));
  }
  LS_CHECK(!index.packet_of_frame.empty(), DataError, "{}: the video has no frames", file);
  std::stable_sort(index.packet_of_frame.begin(), index.packet_of_frame.end(),
                   [&](int32_t a, int32_t b) { return packets[a].pts < packets[b].pts; });
  for (size_t i = 0; i < index.packet_of_frame.size(); ++i) {
    const int32_t own = index.packet_of_frame[i];
    const int64_t pts = packets[own].pts;
    LS_CHECK(index.pts.empty() || index.pts.back() < pts, DataError,
             "{}: frames {} and {} have the same presentation time {:.6f} s", file, i - 1, i,
             static_cast<double>(pts) * av_q2d(index.time_base));
    index.pts.push_back(pts);
    // Pictures that follow a key frame in the file but are shown before it (open GOP) need the key
    // frame before that one.
    int32_t start = own;
    while (start > 0 && !(packets[start].is_key && packets[start].pts <= pts)) --start;
    index.start_of_frame.push_back(start);
    index.info.pts_s.push_back(static_cast<double>(pts) * av_q2d(index.time_base));
    index.info.is_key_frame.push_back(packets[own].is_key ? 1 : 0);
  }
  index.info.num_frames = static_cast<int64_t>(index.pts.size());
}

/// What runs of packets need to be told apart by their times.
void measure_times(VideoIndex::Impl& index) {
  constexpr int64_t kMostSpan = int64_t{1} << 48;  // thousands of them fit into a time
  const auto [first, last] =
      std::minmax_element(index.packets.begin(), index.packets.end(),
                          [](const PacketEntry& a, const PacketEntry& b) { return a.pts < b.pts; });
  index.first_pts = first->pts;
  const bool is_sane = first->pts > -kMostSpan && last->pts < kMostSpan;
  index.pts_span = is_sane ? last->pts - first->pts + 1 : 0;
}

int64_t display_rotation(const AVStream& stream) {
  const uint8_t* matrix = av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, nullptr);
  if (matrix == nullptr) return 0;
  const double degrees = av_display_rotation_get(reinterpret_cast<const int32_t*>(matrix));
  return std::isnan(degrees) ? 0 : std::lround(-degrees);
}

/// What only a decoded picture tells for certain.
void describe_first_frame(VideoIndex::Impl& index) {
  FrameDecoder decoder(index);
  const AVFrame& frame = decoder.decode(0);
  index.info.decoder = decoder.decoder_name();
  index.info.width = frame.width;
  index.info.height = frame.height;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(format);
  LS_CHECK(layout != nullptr, DataError, "{}: codec {} gives pictures of an unknown pixel format",
           index.info.path.string(), index.info.codec);
  index.info.pixel_format = layout->name;
  index.pixel_format = format;
  index.color_range = frame.color_range;
  index.color_space = frame.colorspace;
  index.info.is_depth = layout->nb_components == 1 && layout->comp[0].depth > 8;
}

}  // namespace

VideoIndex::VideoIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
VideoIndex::~VideoIndex() = default;
const VideoInfo& VideoIndex::info() const {
  return impl_->info;
}

std::shared_ptr<const VideoIndex> VideoIndex::build(const std::filesystem::path& path) {
  const std::string file = path.string();
  auto impl = std::make_unique<Impl>();
  FileDescriptor descriptor(path);
  impl->stamp = descriptor.stamp();
  LS_CHECK(impl->stamp.bytes > 0, DataError, "{}: the video file is empty", file);
  const FfmpegPtr<AVFormatContext> container = open_container(file);
  const int best = av_find_best_stream(container.get(), AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
  LS_CHECK(best >= 0, DataError, "{}: the file has no video stream", file);
  for (unsigned i = 0; i < container->nb_streams; ++i) {
    if (static_cast<int>(i) != best) container->streams[i]->discard = AVDISCARD_ALL;
  }
  AVStream& stream = *container->streams[best];
  VideoInfo& info = impl->info;
  info.path = path;
  info.container = container->iformat->name;
  info.codec = avcodec_get_name(stream.codecpar->codec_id);
  info.average_fps = {stream.avg_frame_rate.num,
                      stream.avg_frame_rate.den == 0 ? 1 : stream.avg_frame_rate.den};
  info.rotation_deg = display_rotation(stream);
  impl->time_base = stream.time_base;
  impl->parameters.reset(avcodec_parameters_alloc());
  LS_CHECK(impl->parameters != nullptr &&
               avcodec_parameters_copy(impl->parameters.get(), stream.codecpar) >= 0,
           DataError, "{}: out of memory", file);
  {
    const Mapping mapping(descriptor, impl->stamp.bytes);
    const int64_t end = read_packets(*container, stream, mapping, *impl);
    order_frames(*impl);
    measure_times(*impl);
    info.duration_s = static_cast<double>(end - impl->pts.front()) * av_q2d(impl->time_base);
  }
  describe_first_frame(*impl);
  return std::shared_ptr<const VideoIndex>(new VideoIndex(std::move(impl)));
}

int64_t VideoIndex::nearest_frame(double time_s) const {
  const std::vector<double>& times = impl_->info.pts_s;
  const auto after = std::lower_bound(times.begin(), times.end(), time_s);
  if (after == times.begin()) return 0;
  if (after == times.end()) return impl_->info.num_frames - 1;
  const auto before = after - 1;
  return (time_s - *before <= *after - time_s ? before : after) - times.begin();
}

int64_t VideoIndex::decode_cost(int64_t frame_idx) const {
  LS_CHECK(frame_idx >= 0 && frame_idx < impl_->info.num_frames, DataError,
           "{}: frame {} of {} was asked for", impl_->info.path.string(), frame_idx,
           impl_->info.num_frames);
  const auto i = static_cast<size_t>(frame_idx);
  return impl_->packet_of_frame[i] - impl_->start_of_frame[i] + 1;
}

std::string ffmpeg_version() {
  return av_version_info();
}

}  // namespace longship::io
