// The GPU's decoder: a clear refusal where it is not there, the same pictures where it is.

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/video.h"
#include "io/video_ffmpeg.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "video_support.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::dataset_path;
using longship::testing::expect_error;
using longship::testing::read_frame;
using longship::testing::read_frames;

fs::path clip(const std::string& name) {
  return longship::testing::source_root() / "tests/io/fixtures/clips" / name;
}

bool nvdec_works() {
  try {
    require_nvdec();
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

TEST(VideoNvdec, WithoutTheDriverTheRefusalSaysWhatIsMissing) {
  if (nvdec_works()) GTEST_SKIP() << "the decoder works here";
  expect_error<ConfigError>([] { require_nvdec(); },
                            {"data.decoder", "nvdec", "libnvcuvid.so.1", "use cpu"});
  const VideoIndexPtr index = VideoIndex::build(clip("h264_bt709.mp4"));
  expect_error<ConfigError>([&] { VideoReader reader(index, VideoDecoder::kNvdec); },
                            {"h264_bt709.mp4", "nvdec", "data.decoder=cpu"});
  VideoReader cpu(index);
  EXPECT_FALSE(read_frame(cpu, 3).empty()) << "the CPU's decoder is not touched by it";
}

TEST(VideoNvdec, VideosThatTheGpuCannotDecodeAreNamed) {
  const VideoIndexPtr index = VideoIndex::build(longship::testing::broken_file(
      "codec-mpeg4", "base_v21", "videos/chunk-000/observation.images.top/episode_000000.mp4"));
  expect_error<ConfigError>([&] { VideoReader reader(index, VideoDecoder::kNvdec); },
                            {"episode_000000.mp4", "mpeg4", "data.decoder=cpu"});
}

/// A frame of random samples of `bits` bits.
FfmpegPtr<AVFrame> random_frame(AVPixelFormat format, int width, int height, int bits, int shift) {
  FfmpegPtr<AVFrame> frame(av_frame_alloc());
  frame->format = format;
  frame->width = width;
  frame->height = height;
  EXPECT_GE(av_frame_get_buffer(frame.get(), 0), 0);
  std::mt19937 generator(static_cast<unsigned>(width));
  const int rows[2] = {height, (height + 1) / 2}, columns[2] = {width, (width + 1) / 2 * 2};
  for (int plane = 0; plane < 2; ++plane) {
    for (int y = 0; y < rows[plane]; ++y) {
      uint8_t* row = frame->data[plane] + y * frame->linesize[plane];
      for (int x = 0; x < columns[plane]; ++x) {
        const unsigned value = (generator() & ((1u << bits) - 1)) << shift;
        if (bits == 8) {
          row[x] = static_cast<uint8_t>(value);
        } else {
          reinterpret_cast<uint16_t*>(row)[x] = static_cast<uint16_t>(value);
        }
      }
    }
  }
  return frame;
}

TEST(VideoNvdec, ThePicturesOfTheGpuAreTakenApartExactly) {
  for (const auto& [width, height] : {std::pair{64, 48}, {65, 49}, {1, 1}}) {
    for (const bool is_deep : {false, true}) {
      VideoIndex::Impl index;
      index.pixel_format = is_deep ? AV_PIX_FMT_YUV420P10LE : AV_PIX_FMT_YUVJ420P;
      index.color_range = AVCOL_RANGE_JPEG;
      index.color_space = AVCOL_SPC_BT709;
      const auto gpu = random_frame(is_deep ? AV_PIX_FMT_P010LE : AV_PIX_FMT_NV12, width, height,
                                    is_deep ? 10 : 8, is_deep ? 6 : 0);
      const FfmpegPtr<AVFrame> planes(av_frame_alloc());
      for (int round = 0; round < 2; ++round) to_planes(*gpu, index, *planes);
      EXPECT_EQ(planes->format, index.pixel_format);
      EXPECT_EQ(planes->color_range, AVCOL_RANGE_JPEG);
      EXPECT_EQ(planes->colorspace, AVCOL_SPC_BT709);
      const auto sample = [is_deep](const AVFrame& frame, int plane, int x, int y) {
        const uint8_t* row = frame.data[plane] + y * frame.linesize[plane];
        return is_deep ? int{reinterpret_cast<const uint16_t*>(row)[x]} : int{row[x]};
      };
      const int down = is_deep ? 6 : 0;
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          ASSERT_EQ(sample(*planes, 0, x, y), sample(*gpu, 0, x, y) >> down);
          ASSERT_EQ(sample(*planes, 1, x / 2, y / 2), sample(*gpu, 1, x / 2 * 2, y / 2) >> down);
          ASSERT_EQ(sample(*planes, 2, x / 2, y / 2),
                    sample(*gpu, 1, x / 2 * 2 + 1, y / 2) >> down);
        }
      }
    }
  }
  VideoIndex::Impl index;
  index.pixel_format = AV_PIX_FMT_YUV420P;
  index.info.pixel_format = "yuv420p";
  const auto deep = random_frame(AV_PIX_FMT_P010LE, 8, 8, 10, 6);
  const FfmpegPtr<AVFrame> planes(av_frame_alloc());
  expect_error<DataError>([&] { to_planes(*deep, index, *planes); }, {"another depth", "yuv420p"});
}

/// Frames of both decoders in rising and falling order and out of one call are equal.
void expect_equal_frames(const VideoIndexPtr& index) {
  VideoReader cpu(index), gpu(index, VideoDecoder::kNvdec);
  const int64_t frames = std::min<int64_t>(index->info().num_frames, 40);
  for (int64_t i = 0; i < frames; ++i) EXPECT_EQ(read_frame(cpu, i), read_frame(gpu, i)) << i;
  for (int64_t i = frames - 1; i >= 0; i -= 5) {
    EXPECT_EQ(read_frame(cpu, i), read_frame(gpu, i)) << i;
  }
  EXPECT_EQ(read_frames(cpu, {1, 4, 5, 17}), read_frames(gpu, {1, 4, 5, 17}));
}

TEST(VideoNvdecGpu, PicturesAreThoseOfTheCpu) {
  if (!nvdec_works()) GTEST_SKIP() << "no decoder of the driver";
  for (const char* name :
       {"h264_bt709.mp4", "h264_full_bt709.mp4", "h264_open_gop.mp4", "large_hevc_10bit_b.mp4",
        "large_hevc_full.mp4", "large_vp9_alt_ref.mp4"}) {
    SCOPED_TRACE(name);
    expect_equal_frames(VideoIndex::build(clip(name)));
  }
}

// Decoders of data-centre GPUs do not all know AV1.
TEST(VideoNvdecGpu, Av1IsEqualOrNamed) {
  if (!nvdec_works()) GTEST_SKIP() << "no decoder of the driver";
  for (const fs::path& path : {clip("large_av1_10bit.mp4"), clip("large_av1_full_bt709.mp4"),
                               dataset_path("two_cam_v30") /
                                   "videos/observation.images.cam_high/chunk-000/file-000.mp4"}) {
    SCOPED_TRACE(path.string());
    const VideoIndexPtr index = VideoIndex::build(path);
    bool decodes = true;
    try {
      VideoReader gpu(index, VideoDecoder::kNvdec);
      read_frame(gpu, 0);
    } catch (const ConfigError& error) {
      decodes = false;
      for (const char* word : {"av1", "data.decoder=nvdec", "use data.decoder=cpu"}) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
    if (decodes) expect_equal_frames(index);
  }
}

}  // namespace
}  // namespace longship::io
