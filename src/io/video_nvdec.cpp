// The GPU's video decoder, through FFmpeg's CUVID decoders: they load libcuda and libnvcuvid when
// one is opened, so nothing here links to either.
#include <fmt/core.h>

#include <cstring>
#include <mutex>

extern "C" {
#include <libavutil/hwcontext.h>
}

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {
namespace {

const char* cuvid_name(AVCodecID id) {
  switch (id) {
    case AV_CODEC_ID_H264:
      return "h264_cuvid";
    case AV_CODEC_ID_HEVC:
      return "hevc_cuvid";
    case AV_CODEC_ID_AV1:
      return "av1_cuvid";
    case AV_CODEC_ID_VP9:
      return "vp9_cuvid";
    default:
      return nullptr;
  }
}

/// Two samples of `bytes` each beside another -> one plane each.
void split_row(const uint8_t* from, int count, size_t bytes, uint8_t* first, uint8_t* second) {
  for (int i = 0; i < count; ++i, from += 2 * bytes, first += bytes, second += bytes) {
    std::memcpy(first, from, bytes);
    std::memcpy(second, from + bytes, bytes);
  }
}

/// P010 holds its 10 bits at the top of 16.
void lower_bits(uint8_t* row, int count) {
  for (int i = 0; i < count; ++i, row += 2) {
    uint16_t value;
    std::memcpy(&value, row, sizeof value);
    value = static_cast<uint16_t>(value >> 6);
    std::memcpy(row, &value, sizeof value);
  }
}

/// Pictures on the host; with a device at hand FFmpeg's own choice would be its memory.
AVPixelFormat host_format(AVCodecContext*, const AVPixelFormat* formats) {
  while (*formats == AV_PIX_FMT_CUDA) ++formats;
  return *formats;
}

/// The first device, opened once: its primary context, which CUDA's runtime uses too. A decoder
/// that opens its own would take hundreds of megabytes for it. Null when there is none.
AVBufferRef* shared_device() {
  constexpr int kUsePrimaryContext = 1;  // AV_CUDA_USE_PRIMARY_CONTEXT, whose header needs CUDA's
  static std::mutex mutex;
  static AVBufferRef* device = nullptr;  // for as long as the program runs
  const std::lock_guard lock(mutex);
  if (device == nullptr && av_hwdevice_ctx_create(&device, AV_HWDEVICE_TYPE_CUDA, nullptr, nullptr,
                                                  kUsePrimaryContext) < 0) {
    device = nullptr;
  }
  return device;
}

int open_on_device(AVCodecContext& codec) {
  AVBufferRef* device = shared_device();
  if (device == nullptr) return AVERROR_EXTERNAL;
  codec.hw_device_ctx = av_buffer_ref(device);
  if (codec.hw_device_ctx == nullptr) return AVERROR(ENOMEM);
  codec.get_format = host_format;
  return avcodec_open2(&codec, codec.codec, nullptr);
}

}  // namespace

void require_nvdec() {
  reset_ffmpeg_log();
  const AVCodec* codec = avcodec_find_decoder_by_name("h264_cuvid");
  LS_CHECK(codec != nullptr, ConfigError,
           "data.decoder: nvdec needs an FFmpeg with CUVID decoders, this one ({}) has none; use "
           "cpu",
           ffmpeg_version());
  const FfmpegPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  LS_CHECK(context != nullptr, ConfigError, "data.decoder: out of memory");
  context->width = context->height = 256;
  context->pkt_timebase = {1, 1000};
  const int result = open_on_device(*context);
  LS_CHECK(result >= 0, ConfigError,
           "data.decoder: nvdec does not work on this machine: {}; it needs a GPU and the driver's "
           "libraries libcuda.so.1 and libnvcuvid.so.1; use cpu",
           ffmpeg_error(result));
}

FfmpegPtr<AVCodecContext> nvdec_context(const VideoIndex::Impl& index) {
  const char* name = cuvid_name(index.parameters->codec_id);
  const AVCodec* codec = name == nullptr ? nullptr : avcodec_find_decoder_by_name(name);
  const bool has_layout = index.pixel_format == AV_PIX_FMT_YUV420P ||
                          index.pixel_format == AV_PIX_FMT_YUVJ420P ||
                          index.pixel_format == AV_PIX_FMT_YUV420P10LE;
  LS_CHECK(codec != nullptr && has_layout, ConfigError,
           "{}: data.decoder=nvdec decodes H.264, HEVC, AV1 and VP9 in yuv420p of 8 or 10 bits, "
           "this video is {} in {}; use data.decoder=cpu",
           index.info.path.string(), index.info.codec, index.info.pixel_format);
  FfmpegPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  LS_CHECK(context != nullptr, DataError, "{}: out of memory", index.info.path.string());
  return context;
}

void open_nvdec(AVCodecContext& codec, const VideoIndex::Impl& index) {
  int result = avcodec_parameters_to_context(&codec, index.parameters.get());
  if (result >= 0) {
    codec.pkt_timebase = index.time_base;
    codec.max_pixels = kMaxPictureArea;
    result = open_on_device(codec);
  }
  LS_CHECK(result >= 0, ConfigError,
           "{}: data.decoder=nvdec: the GPU does not decode this {} video: {}; use "
           "data.decoder=cpu",
           index.info.path.string(), index.info.codec, ffmpeg_error(result));
}

void to_planes(const AVFrame& frame, const VideoIndex::Impl& index, AVFrame& out) {
  const bool is_deep = frame.format == AV_PIX_FMT_P010LE;
  LS_CHECK(is_deep || frame.format == AV_PIX_FMT_NV12, DataError,
           "{}: the GPU gave pictures in the layout {}, expected nv12 or p010le",
           index.info.path.string(), frame.format);
  LS_CHECK(is_deep == (index.pixel_format == AV_PIX_FMT_YUV420P10LE), DataError,
           "{}: the GPU gave pictures of another depth than {}", index.info.path.string(),
           index.info.pixel_format);
  if (out.width != frame.width || out.height != frame.height || out.format != index.pixel_format) {
    av_frame_unref(&out);
    out.width = frame.width;
    out.height = frame.height;
    out.format = index.pixel_format;
    LS_CHECK(av_frame_get_buffer(&out, 0) >= 0, DataError, "{}: out of memory",
             index.info.path.string());
  }
  out.color_range = index.color_range;
  out.colorspace = index.color_space;
  const size_t bytes = is_deep ? 2 : 1;
  for (int y = 0; y < frame.height; ++y) {
    uint8_t* row = out.data[0] + static_cast<int64_t>(y) * out.linesize[0];
    std::memcpy(row, frame.data[0] + static_cast<int64_t>(y) * frame.linesize[0],
                static_cast<size_t>(frame.width) * bytes);
    if (is_deep) lower_bits(row, frame.width);
  }
  const int width = (frame.width + 1) / 2, height = (frame.height + 1) / 2;
  for (int y = 0; y < height; ++y) {
    uint8_t* first = out.data[1] + static_cast<int64_t>(y) * out.linesize[1];
    uint8_t* second = out.data[2] + static_cast<int64_t>(y) * out.linesize[2];
    split_row(frame.data[1] + static_cast<int64_t>(y) * frame.linesize[1], width, bytes, first,
              second);
    if (is_deep) {
      lower_bits(first, width);
      lower_bits(second, width);
    }
  }
}

}  // namespace longship::io
