// The GPU's decoder: a clear refusal where it is not there, the same pictures where it is.

#include <algorithm>
#include <string>

#include "base/error.h"
#include "expect_error.h"
#include "io/video.h"
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

TEST(VideoNvdecGpu, PicturesAreThoseOfTheCpu) {
  if (!nvdec_works()) GTEST_SKIP() << "no decoder of the driver";
  for (const fs::path& path :
       {clip("h264_bt709.mp4"), clip("h264_full_bt709.mp4"), clip("h264_open_gop.mp4"),
        clip("hevc_10bit_b.mp4"), clip("hevc_full.mp4"), clip("vp9_alt_ref.mp4"),
        clip("av1_10bit.mp4"), clip("av1_full_bt709.mp4"),
        dataset_path("two_cam_v30") /
            "videos/observation.images.cam_high/chunk-000/file-000.mp4"}) {
    SCOPED_TRACE(path.string());
    const VideoIndexPtr index = VideoIndex::build(path);
    VideoReader cpu(index), gpu(index, VideoDecoder::kNvdec);
    const int64_t frames = std::min<int64_t>(index->info().num_frames, 40);
    for (int64_t i = 0; i < frames; ++i) EXPECT_EQ(read_frame(cpu, i), read_frame(gpu, i)) << i;
    for (int64_t i = frames - 1; i >= 0; i -= 5) {
      EXPECT_EQ(read_frame(cpu, i), read_frame(gpu, i)) << i;
    }
    EXPECT_EQ(read_frames(cpu, {1, 4, 5, 17}), read_frames(gpu, {1, 4, 5, 17}));
  }
}

}  // namespace
}  // namespace longship::io
