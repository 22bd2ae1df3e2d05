// Stretches of frames moved to a new file packet by packet: the same pictures, bit for bit, at
// exact times.

#include "io/video_concat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "support/paths.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> codec_videos() {
  std::vector<fs::path> videos;
  for (const auto& entry :
       fs::recursive_directory_iterator(longship::testing::dataset_path("broken/cases"))) {
    const std::string path = entry.path().string();
    const bool named = path.find("/codec-") != std::string::npos ||
                       path.find("/video-variable-rate/") != std::string::npos ||
                       path.find("/size-6") != std::string::npos;
    if (named && entry.path().extension() == ".mp4") videos.push_back(entry.path());
  }
  std::sort(videos.begin(), videos.end());
  return videos;
}

std::vector<uint8_t> picture(VideoReader& reader, int64_t frame) {
  std::vector<uint8_t> rgb(static_cast<size_t>(reader.info().width * reader.info().height * 3));
  reader.read_rgb(frame, rgb.data());
  return rgb;
}

void expect_stretch(VideoReader& source, int64_t first, int64_t count, VideoReader& made,
                    int64_t placed) {
  for (int64_t k = 0; k < count; ++k) {
    ASSERT_EQ(picture(source, first + k), picture(made, placed + k))
        << "frame " << first + k << " of " << source.info().path;
  }
}

TEST(VideoConcat, EveryStretchOfEveryCodecStaysTheSame) {
  const auto videos = codec_videos();
  ASSERT_GE(videos.size(), 15u);
  const fs::path folder = longship::testing::scratch_dir("video_concat");
  for (const fs::path& video : videos) {
    VideoReader source = VideoReader::open(video);
    const int64_t n = source.info().num_frames;
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, n}, {3, 3}, {n / 2, n - n / 2}, {n - 1, 1}, {1, n - 2}}) {
      const fs::path path = folder / "made.mp4";
      fs::remove(path);
      VideoConcat concat(path, {10, 1});
      if (!concat.accepts(*source.index(), first, count)) {
        // Only what MP4 does not take.
        EXPECT_EQ(source.info().codec, "ffv1") << video;
        continue;
      }
      const int64_t placed = concat.append(*source.index(), first, count);
      // The whole file once more behind it, as the next episode.
      ASSERT_TRUE(concat.accepts(*source.index(), 0, n)) << video;
      const int64_t second = concat.append(*source.index(), 0, n);
      const int64_t total = concat.num_frames();
      concat.close();
      VideoReader made = VideoReader::open(path);
      ASSERT_EQ(made.info().num_frames, total) << video;
      EXPECT_EQ(made.info().average_fps.num, 10 * made.info().average_fps.den) << video;
      for (int64_t k = 0; k < total; ++k) {
        ASSERT_NEAR(made.info().pts_s[static_cast<size_t>(k)], static_cast<double>(k) / 10, 1e-9);
      }
      ASSERT_NO_FATAL_FAILURE(expect_stretch(source, first, count, made, placed)) << video;
      ASSERT_NO_FATAL_FAILURE(expect_stretch(source, 0, n, made, second)) << video;
    }
  }
}

TEST(VideoConcat, OtherSettingsAreNotAccepted) {
  const fs::path cases = longship::testing::dataset_path("broken/cases");
  const auto video = [&](const char* id) {
    return VideoIndex::build(cases / id /
                             "files/videos/chunk-000/observation.images.top/episode_000000.mp4");
  };
  const auto h264 = video("codec-h264-gop1"), hevc = video("codec-hevc");
  VideoConcat concat(longship::testing::scratch_dir("concat_settings") / "a.mp4", {10, 1});
  ASSERT_TRUE(concat.accepts(*h264, 0, 12));
  concat.append(*h264, 0, 12);
  EXPECT_TRUE(concat.accepts(*h264, 4, 2));
  EXPECT_FALSE(concat.accepts(*hevc, 0, 12));
  EXPECT_FALSE(concat.accepts(*h264, 4, 9));
  EXPECT_FALSE(concat.accepts(*h264, -1, 2));
  concat.close();
}

TEST(VideoConcat, RatesAreFractions) {
  const auto expect = [](double fps, int64_t num, int64_t den) {
    const Rational rate = rational_rate(fps);
    EXPECT_EQ(rate.num, num) << fps;
    EXPECT_EQ(rate.den, den) << fps;
  };
  expect(10, 10, 1);
  expect(29.97, 2997, 100);
  expect(30000.0 / 1001, 30000, 1001);
  expect(12.5, 25, 2);
}

}  // namespace
}  // namespace longship::io
