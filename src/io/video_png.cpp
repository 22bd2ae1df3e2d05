#include "io/video_png.h"

#include <cstring>

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {

std::string encode_png(std::span<const uint8_t> rgb, int64_t height, int64_t width) {
  LS_CHECK(height > 0 && width > 0 && height <= 32768 && width <= 32768 &&
               static_cast<int64_t>(rgb.size()) == height * width * 3,
           DataError, "a picture of {}x{} with {} bytes cannot be written as PNG", width, height,
           rgb.size());
  reset_ffmpeg_log();
  const auto check = [](int result) {
    LS_CHECK(result >= 0, DataError, "a picture cannot be written as PNG: {}",
             ffmpeg_error(result));
  };
  const AVCodec* codec = avcodec_find_encoder(AV_CODEC_ID_PNG);
  LS_CHECK(codec != nullptr, DataError, "FFmpeg was built without an encoder for PNG");
  const FfmpegPtr<AVCodecContext> context(avcodec_alloc_context3(codec));
  const FfmpegPtr<AVFrame> frame(av_frame_alloc());
  const FfmpegPtr<AVPacket> packet(av_packet_alloc());
  LS_CHECK(context != nullptr && frame != nullptr && packet != nullptr, DataError, "out of memory");
  context->width = frame->width = static_cast<int>(width);
  context->height = frame->height = static_cast<int>(height);
  context->pix_fmt = AV_PIX_FMT_RGB24;
  context->time_base = {1, 1};
  context->thread_count = 1;
  frame->format = AV_PIX_FMT_RGB24;
  check(avcodec_open2(context.get(), codec, nullptr));
  check(av_frame_get_buffer(frame.get(), 0));
  const auto row_bytes = static_cast<size_t>(width) * 3;
  for (int64_t y = 0; y < height; ++y) {
    std::memcpy(frame->data[0] + y * frame->linesize[0],
                rgb.data() + static_cast<size_t>(y) * row_bytes, row_bytes);
  }
  check(avcodec_send_frame(context.get(), frame.get()));
  check(avcodec_receive_packet(context.get(), packet.get()));
  return {reinterpret_cast<const char*>(packet->data), static_cast<size_t>(packet->size)};
}

}  // namespace longship::io
