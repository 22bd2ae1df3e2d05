// Clips made by tools/make_clips.cpp: the codecs, depths, ranges, matrices, sizes and frame rates
// that the small datasets do not have. What their pictures must look like is known exactly.

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "clip_pattern.h"
#include "io/video.h"
#include "support/paths.h"
#include "video_support.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::clip_picture;
using longship::testing::read_bar_code;
using longship::testing::read_frame;
using longship::testing::read_frames;

struct Clip {
  const char* file;
  const char* codec;
  const char* pixel_format;
  int64_t width, height;
};

constexpr int kFrames = 24;

fs::path clip_path(const std::string& file) {
  return longship::testing::source_root() / "tests/io/fixtures/clips" / file;
}

/// Mean difference to what was encoded, in levels.
double mean_error(const std::vector<uint8_t>& rgb, int frame, int width, int height) {
  const auto want = clip_picture(frame, width, height);
  double sum = 0;
  for (size_t i = 0; i < rgb.size(); ++i) sum += std::abs(int{rgb[i]} - int{want[i]});
  return sum / static_cast<double>(rgb.size());
}

class VideoClip : public ::testing::TestWithParam<Clip> {};

TEST_P(VideoClip, EveryFrameIsWhatWasEncodedInAnyOrder) {
  const Clip& clip = GetParam();
  const VideoIndexPtr index = VideoIndex::build(clip_path(clip.file));
  const VideoInfo& info = index->info();
  EXPECT_EQ(info.codec, clip.codec);
  EXPECT_EQ(info.pixel_format, clip.pixel_format);
  ASSERT_EQ(info.width, clip.width);
  ASSERT_EQ(info.height, clip.height);
  ASSERT_EQ(info.num_frames, kFrames);
  const auto width = static_cast<int>(clip.width), height = static_cast<int>(clip.height);
  std::vector<std::vector<uint8_t>> frames;
  VideoReader forward(index);
  for (int i = 0; i < kFrames; ++i) {
    frames.push_back(read_frame(forward, i));
    const auto code = read_bar_code(frames.back(), clip.width);
    EXPECT_EQ(code.frame, i);
    EXPECT_EQ(code.camera, 2);
    EXPECT_EQ(code.episode, 5);
    EXPECT_LT(mean_error(frames.back(), i, width, height), 3) << "frame " << i;
    EXPECT_GT(mean_error(frames.back(), i + 3, width, height), 3) << "the picture moves";
  }
  EXPECT_EQ(forward.statistics().seeks, 1);
  VideoReader jumping(index), passing(index);
  std::mt19937 generator(3);
  for (int round = 0; round < 60; ++round) {
    const auto i = static_cast<int64_t>(generator() % kFrames);
    EXPECT_EQ(read_frame(jumping, i), frames[static_cast<size_t>(i)]) << i;
    std::vector<int64_t> wanted;
    for (int64_t k = 0; k < kFrames; ++k) {
      if (generator() % (round % 7 + 2u) == 0) wanted.push_back(k);
    }
    const auto pictures = read_frames(passing, wanted);
    for (size_t k = 0; k < wanted.size(); ++k) {
      EXPECT_EQ(pictures[k], frames[static_cast<size_t>(wanted[k])]) << wanted[k];
    }
  }
  for (int64_t i = 0; i < kFrames; ++i) {
    VideoReader fresh(index);
    EXPECT_EQ(read_frame(fresh, i), frames[static_cast<size_t>(i)]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Clips, VideoClip,
    ::testing::Values(Clip{"vp9_alt_ref.mp4", "vp9", "yuv420p", 64, 48},
                      Clip{"vp9_alt_ref.webm", "vp9", "yuv420p", 64, 48},
                      Clip{"vp9_odd_65x49.webm", "vp9", "yuv420p", 65, 49},
                      Clip{"vp9_10bit.webm", "vp9", "yuv420p10le", 64, 48},
                      Clip{"hevc_10bit_b.mp4", "hevc", "yuv420p10le", 64, 64},
                      Clip{"hevc_full.mp4", "hevc", "yuvj420p", 64, 64},
                      Clip{"av1_10bit.mp4", "av1", "yuv420p10le", 64, 48},
                      Clip{"av1_odd_63x47.mp4", "av1", "yuv420p", 63, 47},
                      Clip{"av1_full_bt709.mp4", "av1", "yuv420p", 64, 48},
                      Clip{"h264_bt709.mp4", "h264", "yuv420p", 64, 48},
                      Clip{"h264_full_bt709.mp4", "h264", "yuvj420p", 64, 48},
                      Clip{"h264_variable_b.mp4", "h264", "yuv420p", 64, 48},
                      Clip{"hevc_variable_b.mp4", "hevc", "yuv420p", 64, 64},
                      Clip{"h264_open_gop.mp4", "h264", "yuv420p", 64, 48},
                      Clip{"large_hevc_10bit_b.mp4", "hevc", "yuv420p10le", 160, 144},
                      Clip{"large_hevc_full.mp4", "hevc", "yuvj420p", 160, 144},
                      Clip{"large_vp9_alt_ref.mp4", "vp9", "yuv420p", 160, 144},
                      Clip{"large_av1_full_bt709.mp4", "av1", "yuv420p", 160, 144}),
    [](const ::testing::TestParamInfo<Clip>& instance) {
      std::string name = instance.param.file;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

TEST(VideoClips, TimesOfAVariableRate) {
  for (const char* file : {"h264_variable_b.mp4", "hevc_variable_b.mp4"}) {
    const VideoIndexPtr index = VideoIndex::build(clip_path(file));
    int64_t ms = 0;
    for (int i = 0; i < kFrames; ++i) {
      const double time = 1e-3 * static_cast<double>(ms);
      EXPECT_NEAR(index->info().pts_s[static_cast<size_t>(i)], time, 1e-6) << file << " " << i;
      EXPECT_EQ(index->nearest_frame(static_cast<float>(time)), i) << file;
      EXPECT_EQ(index->nearest_frame(time + 0.009), i) << file;
      ms += i % 3 == 0 ? 46 : i % 3 == 1 ? 20 : 130;
    }
  }
}

TEST(VideoClips, RandomAccessNeedsNoMoreThanItsGroup) {
  for (const char* file : {"vp9_alt_ref.mp4", "h264_bt709.mp4", "av1_10bit.mp4"}) {
    const VideoIndexPtr index = VideoIndex::build(clip_path(file));
    for (int64_t i = 0; i < kFrames; ++i) EXPECT_LE(index->decode_cost(i), 16) << file << " " << i;
  }
}

}  // namespace
}  // namespace longship::io
