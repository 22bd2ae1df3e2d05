#include "io/video_still.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {

namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpeg = "\xff\xd8\xff";
constexpr int64_t kMaxSide = 32768;

int64_t big_endian(std::string_view bytes, size_t at, size_t count) {
  int64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

StillFacts png_facts(std::string_view bytes, const std::string& name) {
  LS_CHECK(bytes.size() >= 33 && bytes.substr(12, 4) == "IHDR", DataError, "{}: the PNG is cut",
           name);
  StillFacts facts;
  facts.kind = "PNG";
  facts.width = big_endian(bytes, 16, 4);
  facts.height = big_endian(bytes, 20, 4);
  const int64_t depth = big_endian(bytes, 24, 1), type = big_endian(bytes, 25, 1);
  // 0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGB and alpha
  facts.bits = type == 3 ? 8 : std::max<int64_t>(8, depth);
  facts.channels = type == 0 ? 1 : type == 4 ? 2 : type == 6 ? 4 : 3;
  facts.has_alpha = type == 4 || type == 6;
  return facts;
}

StillFacts jpeg_facts(std::string_view bytes, const std::string& name) {
  StillFacts facts;
  facts.kind = "JPEG";
  for (size_t at = 2; at + 9 < bytes.size();) {
    if (static_cast<uint8_t>(bytes[at]) != 0xff) break;
    const auto marker = static_cast<uint8_t>(bytes[at + 1]);
    if (marker == 0xff) {  // filling
      ++at;
      continue;
    }
    // SOF0 .. SOF15 without DHT, JPG and DAC
    if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
      facts.bits = big_endian(bytes, at + 4, 1);
      facts.height = big_endian(bytes, at + 5, 2);
      facts.width = big_endian(bytes, at + 7, 2);
      facts.channels = big_endian(bytes, at + 9, 1);
      return facts;
    }
    at += 2 + static_cast<size_t>(std::max<int64_t>(2, big_endian(bytes, at + 2, 2)));
  }
  throw DataError(name + ": the JPEG is cut: it has no frame header");
}

FfmpegPtr<AVFrame> decode_frame(std::string_view bytes, const StillFacts& facts,
                                const std::string& name) {
  const AVCodec* codec =
      avcodec_find_decoder(facts.kind == "PNG" ? AV_CODEC_ID_PNG : AV_CODEC_ID_MJPEG);
  LS_CHECK(codec != nullptr, DataError, "{}: FFmpeg was built without a decoder for {}", name,
           facts.kind);
  const FfmpegPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  FfmpegPtr<AVFrame> frame(av_frame_alloc());
  const FfmpegPtr<AVPacket> packet(av_packet_alloc());
  LS_CHECK(context != nullptr && frame != nullptr && packet != nullptr &&
               av_new_packet(packet.get(), static_cast<int>(bytes.size())) >= 0,
           DataError, "{}: out of memory", name);
  std::memcpy(packet->data, bytes.data(), bytes.size());
  context->thread_count = 1;
  context->err_recognition = AV_EF_CRCCHECK | AV_EF_EXPLODE;
  context->max_pixels = kMaxSide * kMaxSide;
  reset_ffmpeg_log();
  int result = avcodec_open2(context.get(), codec, nullptr);
  if (result >= 0) result = avcodec_send_packet(context.get(), packet.get());
  if (result >= 0) result = avcodec_send_packet(context.get(), nullptr);
  if (result >= 0) result = avcodec_receive_frame(context.get(), frame.get());
  LS_CHECK(result >= 0, DataError, "{}: the {} does not decode: {}", name, facts.kind,
           ffmpeg_error(result));
  LS_CHECK(frame->width == facts.width && frame->height == facts.height &&
               frame->decode_error_flags == 0,
           DataError, "{}: the {} is damaged", name, facts.kind);
  return frame;
}

/// Formats whose bytes are the colours themselves, copied without any conversion.
bool copy_plain(const AVFrame& frame, Still& out) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const int step = format == AV_PIX_FMT_GRAY8 || format == AV_PIX_FMT_PAL8 ? 1
                   : format == AV_PIX_FMT_YA8                              ? 2
                   : format == AV_PIX_FMT_RGB24                            ? 3
                   : format == AV_PIX_FMT_RGBA                             ? 4
                                                                           : 0;
  if (step == 0) return false;
  uint8_t* to = out.rgb.data();
  for (int y = 0; y < frame.height; ++y) {
    const uint8_t* from = frame.data[0] + static_cast<int64_t>(y) * frame.linesize[0];
    for (int x = 0; x < frame.width; ++x, from += step, to += 3) {
      if (format == AV_PIX_FMT_PAL8) {
        uint32_t colour = 0;  // 0xAARRGGBB
        std::memcpy(&colour, frame.data[1] + 4 * *from, 4);
        to[0] = static_cast<uint8_t>(colour >> 16);
        to[1] = static_cast<uint8_t>(colour >> 8);
        to[2] = static_cast<uint8_t>(colour);
      } else {
        to[0] = from[0];
        to[1] = step < 3 ? from[0] : from[1];
        to[2] = step < 3 ? from[0] : from[2];
      }
    }
  }
  return true;
}

void convert(const AVFrame& frame, Still& out, const std::string& name) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(format);
  LS_CHECK(layout != nullptr && layout->comp[0].depth <= 8, DataError,
           "{}: pictures of format {} are not supported", name,
           layout == nullptr ? "?" : layout->name);
  const FfmpegPtr<SwsContext> converter(sws_getContext(frame.width, frame.height, format,
                                                       frame.width, frame.height, AV_PIX_FMT_RGB24,
                                                       SWS_BILINEAR, nullptr, nullptr, nullptr));
  LS_CHECK(converter != nullptr, DataError, "{}: pictures of format {} have no conversion to RGB",
           name, layout->name);
  sws_setColorspaceDetails(converter.get(), sws_getCoefficients(SWS_CS_ITU601), 1,
                           sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  // The converter works in groups of pixels and needs room for a whole one at the end of a row.
  const int pitch = (frame.width * 3 + 127) / 64 * 64;
  std::vector<uint8_t> rows(static_cast<size_t>(pitch) * static_cast<size_t>(frame.height) + 64);
  uint8_t* planes[4] = {rows.data(), nullptr, nullptr, nullptr};
  const int pitches[4] = {pitch, 0, 0, 0};
  const int done =
      sws_scale(converter.get(), frame.data, frame.linesize, 0, frame.height, planes, pitches);
  LS_CHECK(done == frame.height, DataError, "{}: the conversion to RGB failed", name);
  for (int y = 0; y < frame.height; ++y) {
    std::memcpy(out.rgb.data() + static_cast<int64_t>(y) * frame.width * 3,
                rows.data() + static_cast<int64_t>(y) * pitch,
                static_cast<size_t>(frame.width) * 3);
  }
}

}  // namespace

StillFacts still_facts(std::string_view bytes, const std::string& name) {
  StillFacts facts;
  if (bytes.starts_with(kPng)) {
    facts = png_facts(bytes, name);
  } else if (bytes.starts_with(kJpeg)) {
    facts = jpeg_facts(bytes, name);
  } else {
    throw DataError(name + ": neither PNG nor JPEG by its first bytes");
  }
  LS_CHECK(
      facts.width > 0 && facts.height > 0 && facts.width <= kMaxSide && facts.height <= kMaxSide,
      DataError, "{}: a picture of {}x{}", name, facts.width, facts.height);
  return facts;
}

Still decode_still(std::string_view bytes, const std::string& name) {
  const StillFacts facts = still_facts(bytes, name);
  LS_CHECK(facts.bits == 8, DataError, "{}: {} bits per channel; pictures of colour cameras have 8",
           name, facts.bits);
  LS_CHECK(bytes.size() < size_t{1} << 30, DataError, "{}: {} bytes", name, bytes.size());
  const FfmpegPtr<AVFrame> frame = decode_frame(bytes, facts, name);
  Still out;
  out.height = facts.height;
  out.width = facts.width;
  out.rgb.resize(static_cast<size_t>(out.height * out.width * 3));
  if (!copy_plain(*frame, out)) convert(*frame, out, name);
  return out;
}

}  // namespace longship::io
