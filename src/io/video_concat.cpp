#include "io/video_concat.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {

namespace {

struct FreeOutput {
  void operator()(AVFormatContext* context) const {
    if (context->pb != nullptr) avio_closep(&context->pb);
    avformat_free_context(context);
  }
};

/// The packets that make up a stretch of frames, in file order.
struct Stretch {
  std::vector<int32_t> packets;  // into VideoIndex::Impl::packets
  std::vector<int64_t> rank;     // display order of each among them
  int64_t first_rank = 0;        // of the first frame wanted
  int64_t delay = 0;             // how many places a packet stands behind its display order at most
  bool hidden = false;           // an edit list hides one of them
};

Stretch stretch_of(const VideoIndex::Impl& index, int64_t first, int64_t count) {
  const auto begin_frame = static_cast<size_t>(first),
             end_frame = static_cast<size_t>(first + count);
  int32_t begin = INT32_MAX, end = 0;
  for (size_t frame = begin_frame; frame < end_frame; ++frame) {
    begin = std::min(begin, index.start_of_frame[frame]);
    end = std::max(end, index.packet_of_frame[frame] + 1);
  }
  Stretch out;
  const int64_t key_pts = index.packets[static_cast<size_t>(begin)].pts;
  for (int32_t i = begin; i < end; ++i) {
    const PacketEntry& packet = index.packets[static_cast<size_t>(i)];
    // Shown before the key frame that begins the stretch: they refer to frames that are not taken.
    if (packet.pts < key_pts) continue;
    out.hidden = out.hidden || packet.is_discarded;
    out.packets.push_back(i);
  }
  std::vector<size_t> order(out.packets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return index.packets[static_cast<size_t>(out.packets[a])].pts <
           index.packets[static_cast<size_t>(out.packets[b])].pts;
  });
  out.rank.resize(order.size());
  for (size_t place = 0; place < order.size(); ++place) {
    out.rank[order[place]] = static_cast<int64_t>(place);
    if (out.packets[order[place]] == index.packet_of_frame[begin_frame]) {
      out.first_rank = static_cast<int64_t>(place);
    }
  }
  for (size_t i = 0; i < out.rank.size(); ++i) {
    out.delay = std::max(out.delay, static_cast<int64_t>(i) - out.rank[i]);
  }
  return out;
}

bool same_settings(const AVCodecParameters& a, const AVCodecParameters& b) {
  return a.codec_id == b.codec_id && a.width == b.width && a.height == b.height &&
         a.format == b.format && a.profile == b.profile && a.color_range == b.color_range &&
         a.color_space == b.color_space && a.extradata_size == b.extradata_size &&
         (a.extradata_size == 0 ||
          std::memcmp(a.extradata, b.extradata, static_cast<size_t>(a.extradata_size)) == 0);
}

}  // namespace

Rational rational_rate(double fps) {
  for (const int64_t den : {1, 2, 3, 4, 5, 10, 100, 1000, 1001}) {
    const double num = std::round(fps * static_cast<double>(den));
    if (num >= 1 && std::abs(num / static_cast<double>(den) - fps) < 1e-9 * fps) {
      return {static_cast<int64_t>(num), den};
    }
  }
  return {std::max<int64_t>(1, std::llround(fps * 10000)), 10000};
}

struct VideoConcat::Impl {
  std::filesystem::path path;
  Rational rate;
  const AVOutputFormat* format = nullptr;
  std::unique_ptr<AVFormatContext, FreeOutput> output;
  AVStream* stream = nullptr;
  FfmpegPtr<AVCodecParameters> settings;  // of the first stretch
  AVRational tick{1, 1};                  // of the times given to the muxer: a frame has `period`
  int64_t period = 1;
  int64_t delay = 0;
  int64_t num_frames = 0;

  void begin(const VideoIndex::Impl& index, int64_t reorder);
  void check(int result, const char* what) const {
    LS_CHECK(result >= 0, DataError, "{}: {}: {}", path.string(), what, ffmpeg_error(result));
  }
};

void VideoConcat::Impl::begin(const VideoIndex::Impl& index, int64_t reorder) {
  reset_ffmpeg_log();
  AVFormatContext* raw = nullptr;
  check(avformat_alloc_output_context2(&raw, format, nullptr, path.c_str()),
        "the video cannot be written");
  output.reset(raw);
  stream = avformat_new_stream(raw, nullptr);
  settings.reset(avcodec_parameters_alloc());
  LS_CHECK(stream != nullptr && settings != nullptr, DataError, "{}: out of memory", path.string());
  check(avcodec_parameters_copy(settings.get(), index.parameters.get()), "out of memory");
  check(avcodec_parameters_copy(stream->codecpar, index.parameters.get()), "out of memory");
  // Another container has other four-letter codes; where ours knows the code, it is kept.
  if (format->codec_tag == nullptr ||
      av_codec_get_id(format->codec_tag, stream->codecpar->codec_tag) !=
          stream->codecpar->codec_id) {
    stream->codecpar->codec_tag = 0;
  }
  // A clock of which a frame takes a whole number of ticks: times are exact.
  const int64_t scale = std::max<int64_t>(1, (10000 + rate.num - 1) / rate.num);
  tick = {1, static_cast<int>(rate.num * scale)};
  period = rate.den * scale;
  stream->time_base = tick;
  stream->avg_frame_rate = {static_cast<int>(rate.num), static_cast<int>(rate.den)};
  stream->r_frame_rate = stream->avg_frame_rate;
  delay = reorder;
  check(avio_open(&raw->pb, ("file:" + path.string()).c_str(), AVIO_FLAG_WRITE),
        "the video cannot be written");
  AVDictionary* options = nullptr;
  av_dict_set_int(&options, "video_track_timescale", tick.den, 0);
  const int result = avformat_write_header(raw, &options);
  av_dict_free(&options);
  check(result, "the video cannot be begun");
}

VideoConcat::VideoConcat(std::filesystem::path path, Rational rate)
    : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->rate = rate;
  impl_->format = av_guess_format(nullptr, impl_->path.filename().c_str(), nullptr);
  LS_CHECK(impl_->format != nullptr, DataError,
           "{}: no container goes with this extension; use .mp4 or .mkv", impl_->path.string());
}

VideoConcat::~VideoConcat() = default;

bool VideoConcat::accepts(const VideoIndex& video, int64_t first, int64_t count) const {
  const VideoIndex::Impl& index = video.impl();
  if (count <= 0 || first < 0 || first + count > index.info.num_frames) return false;
  if (index.info.rotation_deg != 0) return false;
  if (avformat_query_codec(impl_->format, index.parameters->codec_id, FF_COMPLIANCE_NORMAL) != 1) {
    return false;
  }
  const Stretch stretch = stretch_of(index, first, count);
  if (stretch.hidden) return false;
  if (impl_->settings == nullptr) return true;
  return stretch.delay <= impl_->delay && same_settings(*impl_->settings, *index.parameters);
}

int64_t VideoConcat::append(const VideoIndex& video, int64_t first, int64_t count) {
  const VideoIndex::Impl& index = video.impl();
  const Stretch stretch = stretch_of(index, first, count);
  if (impl_->output == nullptr) {
    impl_->begin(index, std::max<int64_t>(stretch.delay, index.parameters->video_delay));
  }
  const FileDescriptor file(index.info.path);
  LS_CHECK(file.stamp() == index.stamp, DataError, "{}: the file changed while it was read",
           index.info.path.string());
  FfmpegPtr<AVPacket> packet(av_packet_alloc());
  LS_CHECK(packet != nullptr, DataError, "{}: out of memory", impl_->path.string());
  reset_ffmpeg_log();
  for (size_t i = 0; i < stretch.packets.size(); ++i) {
    const PacketEntry& entry = index.packets[static_cast<size_t>(stretch.packets[i])];
    av_packet_unref(packet.get());
    impl_->check(av_new_packet(packet.get(), entry.size), "out of memory");
    if (entry.in_file) {
      LS_CHECK(file.read_at(entry.offset, packet->data, static_cast<size_t>(entry.size)), DataError,
               "{}: packet {} cannot be read", index.info.path.string(), stretch.packets[i]);
    } else {
      std::memcpy(packet->data, index.stored.data() + entry.offset,
                  static_cast<size_t>(entry.size));
    }
    packet->stream_index = 0;
    packet->flags = entry.is_key ? AV_PKT_FLAG_KEY : 0;
    packet->pts = (impl_->num_frames + stretch.rank[i]) * impl_->period;
    packet->dts = (impl_->num_frames + static_cast<int64_t>(i) - impl_->delay) * impl_->period;
    packet->duration = impl_->period;
    av_packet_rescale_ts(packet.get(), impl_->tick, impl_->stream->time_base);
    impl_->check(av_write_frame(impl_->output.get(), packet.get()), "a packet cannot be written");
  }
  const int64_t placed = impl_->num_frames + stretch.first_rank;
  impl_->num_frames += static_cast<int64_t>(stretch.packets.size());
  return placed;
}

int64_t VideoConcat::num_frames() const {
  return impl_->num_frames;
}

uint64_t VideoConcat::bytes_written() const {
  if (impl_->output == nullptr) return 0;
  const int64_t at = avio_tell(impl_->output->pb);
  return at < 0 ? 0 : static_cast<uint64_t>(at);
}

void VideoConcat::close() {
  if (impl_->output == nullptr) return;
  impl_->check(av_write_trailer(impl_->output.get()), "the video cannot be finished");
  impl_->check(avio_closep(&impl_->output->pb), "the video cannot be finished");
  impl_->output.reset();
}

}  // namespace longship::io
