#include <fmt/core.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "io/video_ffmpeg.h"

namespace longship::io {

struct VideoReader::Impl {
  Impl(VideoIndexPtr shared, VideoDecoder kind)
      : index(std::move(shared)), decoder(index->impl(), kind) {
    if (kind == VideoDecoder::kNvdec) planes.reset(av_frame_alloc());
  }

  const AVFrame& decode(int64_t frame_idx);
  void check_size(int64_t frame_idx, const AVFrame& frame) const;
  void check_is_colour() const;
  void convert(int64_t frame_idx, const AVFrame& decoded, uint8_t* out);
  void prepare_conversion(const AVFrame& frame);

  VideoIndexPtr index;
  FrameDecoder decoder;
  FfmpegPtr<AVFrame> planes;  // with NVDEC: its picture as the CPU would have given it
  FfmpegPtr<SwsContext> converter;
  std::array<int, 3> converter_key = {-1, -1, -1};  // pixel format, range, matrix
  std::vector<uint8_t> rows;  // [height, pitch] converted picture with padding
  int64_t pitch = 0;
};

namespace {

constexpr int64_t kPitchAlignment = 64;

}  // namespace

const AVFrame& VideoReader::Impl::decode(int64_t frame_idx) {
  const AVFrame& frame = decoder.decode(frame_idx);
  check_size(frame_idx, frame);
  ++decoder.statistics().frames_read;
  return frame;
}

void VideoReader::Impl::check_size(int64_t frame_idx, const AVFrame& frame) const {
  const VideoInfo& info = index->info();
  LS_CHECK(frame.width == info.width && frame.height == info.height, DataError,
           "{}: frame {} is {}x{}, the first frame {}x{}; a video must keep one size",
           info.path.string(), frame_idx, frame.width, frame.height, info.width, info.height);
}

void VideoReader::Impl::prepare_conversion(const AVFrame& frame) {
  const bool full_range = frame.color_range == AVCOL_RANGE_JPEG;
  const std::array<int, 3> key = {frame.format, full_range ? 1 : 0, frame.colorspace};
  if (key == converter_key) return;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  converter.reset(sws_getContext(frame.width, frame.height, format, frame.width, frame.height,
                                 AV_PIX_FMT_RGB24, SWS_BILINEAR, nullptr, nullptr, nullptr));
  LS_CHECK(converter != nullptr, DataError,
           "{}: pixel format {} of codec {} has no conversion to RGB", index->info().path.string(),
           index->info().pixel_format, index->info().codec);
  // Fails for pixel formats without a matrix (RGB, gray), which need none. yuvj formats imply the
  // full range themselves.
  const bool implies_full_range = std::string_view(av_get_pix_fmt_name(format)).starts_with("yuvj");
  sws_setColorspaceDetails(converter.get(), sws_getCoefficients(frame.colorspace),
                           full_range || implies_full_range ? 1 : 0,
                           sws_getCoefficients(SWS_CS_DEFAULT), 1, 0, 1 << 16, 1 << 16);
  converter_key = key;
  // The SIMD converter works in groups of pixels and leaves out the rest of a row that has no room
  // for a whole group.
  pitch = (frame.width * 3 + 2 * kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  rows.assign(static_cast<size_t>(pitch * frame.height + kPitchAlignment), 0);
}

VideoReader::VideoReader(VideoIndexPtr index, VideoDecoder decoder)
    : impl_(std::make_unique<Impl>(std::move(index), decoder)) {}
VideoReader VideoReader::open(const std::filesystem::path& path) {
  return VideoReader(VideoIndex::build(path));
}
VideoReader::VideoReader(VideoReader&&) noexcept = default;
VideoReader& VideoReader::operator=(VideoReader&&) noexcept = default;
VideoReader::~VideoReader() = default;

const VideoInfo& VideoReader::info() const {
  return impl_->index->info();
}
const VideoIndexPtr& VideoReader::index() const {
  return impl_->index;
}
const DecodeStatistics& VideoReader::statistics() const {
  return impl_->decoder.statistics();
}

void VideoReader::Impl::convert(int64_t frame_idx, const AVFrame& decoded, uint8_t* out) {
  if (planes) to_planes(decoded, index->impl(), *planes);
  const AVFrame& frame = planes ? *planes : decoded;
  prepare_conversion(frame);
  uint8_t* targets[4] = {rows.data(), nullptr, nullptr, nullptr};
  const int pitches[4] = {static_cast<int>(pitch), 0, 0, 0};
  const int done =
      sws_scale(converter.get(), frame.data, frame.linesize, 0, frame.height, targets, pitches);
  LS_CHECK(done == frame.height, DataError,
           "{}: frame {}: the conversion to RGB gave {} of {} rows", index->info().path.string(),
           frame_idx, done, frame.height);
  const auto row_bytes = static_cast<size_t>(frame.width) * 3;
  for (int row = 0; row < frame.height; ++row) {
    std::memcpy(out + row * row_bytes, rows.data() + row * pitch, row_bytes);
  }
}

void VideoReader::Impl::check_is_colour() const {
  const VideoInfo& info = index->info();
  LS_CHECK(!info.is_depth, DataError,
           "{}: {} pictures are depth, not colour; mark the feature as depth", info.path.string(),
           info.pixel_format);
}

void VideoReader::read_rgb(int64_t frame_idx, uint8_t* out) {
  impl_->check_is_colour();
  impl_->convert(frame_idx, impl_->decode(frame_idx), out);
}

void VideoReader::read_rgb_each(std::span<const int64_t> frames, std::span<uint8_t* const> out) {
  impl_->check_is_colour();
  LS_CHECK(frames.size() == out.size(), InternalError, "{} frames into {} pictures", frames.size(),
           out.size());
  impl_->decoder.decode_each(frames, [&](size_t position, const AVFrame& frame) {
    impl_->check_size(frames[position], frame);
    impl_->convert(frames[position], frame, out[position]);
    ++impl_->decoder.statistics().frames_read;
  });
}

void VideoReader::read_gray16(int64_t frame_idx, uint16_t* out) {
  LS_CHECK(info().is_depth, DataError, "{}: {} pictures are not 16-bit depth", info().path.string(),
           info().pixel_format);
  const AVFrame& frame = impl_->decode(frame_idx);
  const AVPixFmtDescriptor* layout = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  const bool big_endian = (layout->flags & AV_PIX_FMT_FLAG_BE) != 0;
  LS_CHECK((layout->flags & AV_PIX_FMT_FLAG_FLOAT) == 0 && layout->comp[0].step == 2 &&
               layout->comp[0].shift == 0,
           DataError, "{}: depth in pixel format {} is not supported, expected gray16",
           info().path.string(), layout->name);
  for (int row = 0; row < frame.height; ++row) {
    const uint8_t* from = frame.data[0] + static_cast<int64_t>(row) * frame.linesize[0];
    for (int column = 0; column < frame.width; ++column, from += 2) {
      const unsigned low = from[big_endian ? 1 : 0], high = from[big_endian ? 0 : 1];
      *out++ = static_cast<uint16_t>(high << 8 | low);
    }
  }
}

}  // namespace longship::io
