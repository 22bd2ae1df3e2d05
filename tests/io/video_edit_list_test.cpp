// Edit lists: a container may show only a part of its stream, and the part may begin between key
// frames.

#include <fstream>
#include <iterator>

#include "io/video.h"
#include "support/paths.h"
#include "video_support.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::broken_file;
using longship::testing::read_bar_code;
using longship::testing::read_frame;
using longship::testing::scratch_dir;

const char* const kTop = "videos/chunk-000/observation.images.top/episode_000000.mp4";

void put_be32(std::string& bytes, size_t at, uint32_t value) {
  for (int i = 0; i < 4; ++i)
    bytes[at + static_cast<size_t>(i)] = static_cast<char>(value >> (24 - 8 * i));
}

/// A copy of an MP4 whose one edit shows `duration_ms` from `media_time` on (in the stream's units
/// of 1/10240 s).
fs::path with_edit(const std::string& case_name, const std::string& scratch, uint32_t duration_ms,
                   uint32_t media_time) {
  std::ifstream in(broken_file(case_name, "base_v21", kTop), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const size_t box = bytes.find("elst");
  EXPECT_NE(box, std::string::npos);
  put_be32(bytes, box + 12, duration_ms);
  put_be32(bytes, box + 16, media_time);
  const fs::path path = scratch_dir(scratch) / "edited.mp4";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(VideoEditList, AStartBetweenKeyFrames) {
  const VideoIndexPtr index =
      VideoIndex::build(with_edit("codec-h264-gop250-no-bframes", "edit_start", 900, 3 * 1024));
  ASSERT_EQ(index->info().num_frames, 9);
  EXPECT_NEAR(index->info().pts_s[0], 0, 1e-9);
  EXPECT_EQ(index->decode_cost(0), 4) << "the three frames before it are decoded, not shown";
  for (int64_t i : {0, 8, 4, 5, 1}) {
    VideoReader fresh(index);
    EXPECT_EQ(read_bar_code(read_frame(fresh, i), 64).frame, i + 3);
  }
  VideoReader forward(index);
  for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(read_bar_code(read_frame(forward, i), 64).frame, i + 3);
  EXPECT_EQ(forward.statistics().seeks, 1);
}

TEST(VideoEditList, BothEndsOfAStreamWithReorderedPictures) {
  const VideoIndexPtr index =
      VideoIndex::build(with_edit("codec-h264-gop30-bframes", "edit_both", 500, 2048 + 4 * 1024));
  ASSERT_EQ(index->info().num_frames, 5);
  for (int64_t i : {4, 0, 3, 1, 2}) {
    VideoReader fresh(index);
    EXPECT_EQ(read_bar_code(read_frame(fresh, i), 64).frame, i + 4);
  }
}

}  // namespace
}  // namespace longship::io
