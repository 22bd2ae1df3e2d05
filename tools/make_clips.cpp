// Makes the video clips of tests/io/fixtures/clips with the encoders of the FFmpeg libraries:
//   g++ -std=c++20 -O1 -Itests tools/make_clips.cpp -lavformat -lavcodec -lavutil -o /tmp/make_clips
//   /tmp/make_clips tests/io/fixtures/clips
// Not part of the build: the clips are committed, since encoders differ from version to version.
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
}

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "io/clip_pattern.h"

namespace {

struct Clip {
  const char* file;
  const char* encoder;
  const char* options;  // "key=value:key=value"
  int width, height;
  int bits;
  bool is_full_range;
  bool is_bt709;
  int gop, num_b;
  bool is_variable;
};

constexpr int kFrames = 24;

void must(bool ok, const char* what, const char* file) {
  if (ok) return;
  std::fprintf(stderr, "%s: %s failed\n", file, what);
  std::exit(1);
}

/// 4:2:0 of an RGB picture by the definition of the matrix and range; chroma is the mean of its
/// pixels.
void fill(const Clip& clip, int number, AVFrame& frame) {
  const auto rgb = longship::testing::clip_picture(number, clip.width, clip.height);
  const double kr = clip.is_bt709 ? 0.2126 : 0.299, kb = clip.is_bt709 ? 0.0722 : 0.114;
  const double top = (1 << clip.bits) - 1, unit = 1 << (clip.bits - 8);
  const auto store = [&](int plane, int x, int y, double value) {
    const double v = std::clamp(std::round(value), 0.0, top);
    uint8_t* row = frame.data[plane] + y * frame.linesize[plane];
    if (clip.bits == 8) {
      row[x] = static_cast<uint8_t>(v);
    } else {
      reinterpret_cast<uint16_t*>(row)[x] = static_cast<uint16_t>(v);
    }
  };
  const auto luma = [&](int x, int y, double* cb, double* cr) {
    const uint8_t* p = rgb.data() + 3 * (y * clip.width + x);
    const double r = p[0] / 255.0, g = p[1] / 255.0, b = p[2] / 255.0;
    const double l = kr * r + (1 - kr - kb) * g + kb * b;
    *cb = (b - l) / (2 * (1 - kb));
    *cr = (r - l) / (2 * (1 - kr));
    return l;
  };
  for (int y = 0; y < clip.height; ++y) {
    for (int x = 0; x < clip.width; ++x) {
      double cb, cr;
      const double l = luma(x, y, &cb, &cr);
      store(0, x, y, clip.is_full_range ? top * l : unit * (16 + 219 * l));
    }
  }
  const double scale = clip.is_full_range ? top : unit * 224;
  for (int y = 0; y < (clip.height + 1) / 2; ++y) {
    for (int x = 0; x < (clip.width + 1) / 2; ++x) {
      double sum_b = 0, sum_r = 0;
      int count = 0;
      for (int dy = 0; dy < 2; ++dy) {
        for (int dx = 0; dx < 2; ++dx) {
          if (2 * x + dx >= clip.width || 2 * y + dy >= clip.height) continue;
          double cb, cr;
          luma(2 * x + dx, 2 * y + dy, &cb, &cr);
          sum_b += cb;
          sum_r += cr;
          ++count;
        }
      }
      store(1, x, y, unit * 128 + scale * sum_b / count);
      store(2, x, y, unit * 128 + scale * sum_r / count);
    }
  }
}

void drain(AVCodecContext& encoder, AVFormatContext& out, AVStream& stream, const char* file) {
  AVPacket* packet = av_packet_alloc();
  while (avcodec_receive_packet(&encoder, packet) >= 0) {
    packet->stream_index = 0;
    av_packet_rescale_ts(packet, encoder.time_base, stream.time_base);
    must(av_interleaved_write_frame(&out, packet) >= 0, "writing", file);
  }
  av_packet_free(&packet);
}

void make(const Clip& clip, const std::string& folder) {
  const std::string path = folder + "/" + clip.file;
  const AVCodec* codec = avcodec_find_encoder_by_name(clip.encoder);
  must(codec != nullptr, "finding the encoder", clip.file);
  AVFormatContext* out = nullptr;
  must(avformat_alloc_output_context2(&out, nullptr, nullptr, path.c_str()) >= 0, "output",
       clip.file);
  AVCodecContext* encoder = avcodec_alloc_context3(codec);
  encoder->width = clip.width;
  encoder->height = clip.height;
  encoder->time_base = {1, 1000};
  encoder->framerate = {10, 1};
  encoder->pix_fmt = clip.bits == 8 ? AV_PIX_FMT_YUV420P : AV_PIX_FMT_YUV420P10LE;
  encoder->color_range = clip.is_full_range ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
  encoder->colorspace = clip.is_bt709 ? AVCOL_SPC_BT709 : AVCOL_SPC_SMPTE170M;
  encoder->color_primaries = clip.is_bt709 ? AVCOL_PRI_BT709 : AVCOL_PRI_SMPTE170M;
  encoder->color_trc = clip.is_bt709 ? AVCOL_TRC_BT709 : AVCOL_TRC_SMPTE170M;
  encoder->gop_size = clip.gop;
  encoder->max_b_frames = clip.num_b;
  encoder->thread_count = 1;
  if (out->oformat->flags & AVFMT_GLOBALHEADER) encoder->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
  AVDictionary* options = nullptr;
  av_dict_parse_string(&options, clip.options, "=", ":", 0);
  must(avcodec_open2(encoder, codec, &options) >= 0, "opening the encoder", clip.file);
  AVStream* stream = avformat_new_stream(out, nullptr);
  stream->time_base = encoder->time_base;
  stream->avg_frame_rate = encoder->framerate;
  avcodec_parameters_from_context(stream->codecpar, encoder);
  must(avio_open(&out->pb, path.c_str(), AVIO_FLAG_WRITE) >= 0, "opening the file", clip.file);
  must(avformat_write_header(out, nullptr) >= 0, "header", clip.file);
  AVFrame* frame = av_frame_alloc();
  frame->format = encoder->pix_fmt;
  frame->width = clip.width;
  frame->height = clip.height;
  must(av_frame_get_buffer(frame, 0) >= 0, "memory", clip.file);
  int64_t pts = 0;
  for (int i = 0; i < kFrames; ++i) {
    must(av_frame_make_writable(frame) >= 0, "memory", clip.file);
    fill(clip, i, *frame);
    frame->pts = pts;
    pts += clip.is_variable ? (i % 3 == 0 ? 46 : i % 3 == 1 ? 20 : 130) : 100;
    must(avcodec_send_frame(encoder, frame) >= 0, "encoding", clip.file);
    drain(*encoder, *out, *stream, clip.file);
  }
  avcodec_send_frame(encoder, nullptr);
  drain(*encoder, *out, *stream, clip.file);
  must(av_write_trailer(out) >= 0, "trailer", clip.file);
  avio_closep(&out->pb);
  av_frame_free(&frame);
  avcodec_free_context(&encoder);
  avformat_free_context(out);
  std::printf("%s\n", path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const char* vp9 = "crf=8:b=0:deadline=good:cpu-used=2:auto-alt-ref=1:lag-in-frames=16";
  const char* x265 = "crf=6:x265-params=log-level=none:preset=medium";
  const Clip clips[] = {
      {"vp9_alt_ref.mp4", "libvpx-vp9", vp9, 64, 48, 8, false, false, 12, 0, false},
      {"vp9_alt_ref.webm", "libvpx-vp9", vp9, 64, 48, 8, false, false, 12, 0, false},
      {"vp9_odd_65x49.webm", "libvpx-vp9", vp9, 65, 49, 8, false, false, 12, 0, false},
      {"vp9_10bit.webm", "libvpx-vp9", vp9, 64, 48, 10, false, true, 12, 0, false},
      {"hevc_10bit_b.mp4", "libx265", x265, 64, 64, 10, false, true, 12, 3, false},
      {"hevc_full.mp4", "libx265", x265, 64, 64, 8, true, false, 12, 3, false},
      {"av1_10bit.mp4", "libaom-av1", "crf=10:cpu-used=6", 64, 48, 10, false, true, 12, 0, false},
      {"av1_odd_63x47.mp4", "libaom-av1", "crf=10:cpu-used=6:lag-in-frames=16", 63, 47, 8, false,
       false, 12, 0, false},
      {"av1_full_bt709.mp4", "libaom-av1", "crf=10:cpu-used=6", 64, 48, 8, true, true, 12, 0,
       false},
      {"h264_bt709.mp4", "libx264", "crf=6", 64, 48, 8, false, true, 12, 2, false},
      {"h264_full_bt709.mp4", "libx264", "crf=6", 64, 48, 8, true, true, 12, 2, false},
      {"h264_variable_b.mp4", "libx264", "crf=6", 64, 48, 8, false, false, 12, 3, true},
      {"hevc_variable_b.mp4", "libx265", x265, 64, 64, 8, false, false, 12, 3, true},
      {"h264_open_gop.mp4", "libx264", "crf=6:x264-params=open-gop=1", 64, 48, 8, false, false, 6,
       3, false},
      // At least as large as the decoders of GPUs ask for.
      {"large_hevc_10bit_b.mp4", "libx265", x265, 160, 144, 10, false, true, 12, 3, false},
      {"large_hevc_full.mp4", "libx265", x265, 160, 144, 8, true, false, 12, 3, false},
      {"large_vp9_alt_ref.mp4", "libvpx-vp9", vp9, 160, 144, 8, false, false, 12, 0, false},
      {"large_av1_10bit.mp4", "libaom-av1", "crf=4:cpu-used=6", 160, 128, 10, false, true, 12, 0,
       false},
      {"large_av1_full_bt709.mp4", "libaom-av1", "crf=10:cpu-used=6", 160, 144, 8, true, true, 12,
       0, false},
  };
  for (const Clip& clip : clips) make(clip, argv[1]);
  return 0;
}
