// Several frames of a file in one pass: what is decoded, and what happens when something is wrong.

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "io/video.h"
#include "io/video_h264.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "video_support.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::broken_file;
using longship::testing::dataset_path;
using longship::testing::expect_error;
using longship::testing::read_bar_code;
using longship::testing::read_frame;
using longship::testing::read_frames;
using longship::testing::scratch_dir;

const char* const kTop = "videos/chunk-000/observation.images.top/episode_000000.mp4";

fs::path two_cam() {
  return dataset_path("two_cam_v30") / "videos/observation.images.cam_high/chunk-000/file-000.mp4";
}

TEST(VideoPass, PacketsThatSeveralFramesNeedAreDecodedOnce) {
  // One key frame at the start: every frame needs all packets before it.
  VideoReader reader =
      VideoReader::open(broken_file("codec-h264-gop250-no-bframes", "base_v21", kTop));
  const auto frames = read_frames(reader, {2, 5, 6, 10});
  EXPECT_EQ(read_bar_code(frames[0], 64).frame, 2);
  EXPECT_EQ(read_bar_code(frames[3], 64).frame, 10);
  EXPECT_LE(reader.statistics().packets_decoded, 12);
  EXPECT_EQ(reader.statistics().seeks, 1);
  EXPECT_EQ(reader.statistics().frames_read, 4);
}

TEST(VideoPass, JumpsBetweenGroupsDecodeNothingInBetween) {
  VideoReader reader = VideoReader::open(two_cam());
  std::vector<int64_t> wanted;
  for (int64_t i = 0; i < 20; ++i) wanted.push_back(i * 38 + i % 2);  // groups of two
  const auto frames = read_frames(reader, wanted);
  EXPECT_LE(reader.statistics().packets_decoded, 30);
  for (size_t i = 0; i < wanted.size(); ++i) {
    VideoReader fresh(reader.index());
    EXPECT_EQ(frames[i], read_frame(fresh, wanted[i])) << wanted[i];
  }
}

TEST(VideoPass, ManyPassesOverOneReader) {
  // More runs than are chained without a flush.
  VideoReader reader = VideoReader::open(two_cam());
  const auto want = read_frames(reader, {1, 301, 601});
  for (int round = 0; round < 3000; ++round) {
    if (read_frames(reader, {1, 301, 601}) != want) FAIL() << "round " << round;
  }
  VideoReader single(reader.index());
  for (int round = 0; round < 6000; ++round) {
    const int64_t frame = round % 2 == 0 ? 601 : 1;
    if (read_frame(single, frame) != want[round % 2 == 0 ? 2 : 0]) FAIL() << "round " << round;
  }
}

TEST(VideoPass, SequentialPassesGoOnWhereTheDecoderStands) {
  VideoReader reader = VideoReader::open(broken_file("codec-h264-gop30-bframes", "base_v21", kTop));
  int64_t next = 0;
  for (const int64_t count : {3, 1, 4, 2, 2}) {
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < count; ++i) wanted.push_back(next++);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(read_bar_code(read_frames(reader, wanted)[i], 64).frame, wanted[i]);
    }
  }
}

TEST(VideoPass, WindowsThatOverlapKeepTheSharedFrame) {
  VideoReader reader =
      VideoReader::open(broken_file("codec-h264-gop250-no-bframes", "base_v21", kTop));
  for (int64_t i = 1; i < 12; ++i) read_frames(reader, {i - 1, i});
  EXPECT_LE(reader.statistics().packets_decoded, 13);
  EXPECT_EQ(reader.statistics().seeks, 1);
}

TEST(VideoPass, NothingWantedAndFramesThatDoNotExist) {
  VideoReader reader = VideoReader::open(dataset_path("broken/base_v21") / kTop);
  EXPECT_TRUE(read_frames(reader, {}).empty());
  expect_error<DataError>([&] { read_frames(reader, {3, 12}); }, {kTop, "h264", "12", "12 frames"});
  EXPECT_EQ(read_bar_code(read_frames(reader, {4})[0], 64).frame, 4) << "the reader still works";
}

TEST(VideoPass, ADamagedGroupIsNamedAndTheOthersAreRead) {
  const fs::path dir = scratch_dir("video_pass_damage");
  std::ifstream in(two_cam(), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  in.close();
  // Somewhere in the middle of the pictures, longer than a group.
  const size_t media = bytes.find("mdat");
  ASSERT_NE(media, std::string::npos);
  const size_t middle = media + 200'000;
  ASSERT_LT(middle + 3000, bytes.size());
  for (size_t i = middle; i < middle + 3000; ++i) bytes[i] = static_cast<char>(i * 37 + 11);
  std::ofstream(dir / "a.mp4", std::ios::binary) << bytes;
  VideoReader reader = VideoReader::open(dir / "a.mp4");
  VideoReader good = VideoReader::open(two_cam());
  std::vector<int64_t> bad;
  for (int64_t i = 0; i < reader.info().num_frames; ++i) {
    try {
      EXPECT_EQ(read_frame(reader, i), read_frame(good, i)) << i;
    } catch (const DataError&) {
      bad.push_back(i);
    }
  }
  ASSERT_FALSE(bad.empty());
  ASSERT_LT(bad.size(), 30u);
  ASSERT_GT(bad.front(), 10);
  const std::string name = "frame " + std::to_string(bad.front());
  expect_error<DataError>(
      [&] {
        read_frames(reader, {2, 9, bad.front(), bad.back() + 40});
      },
      {"a.mp4", "h264", name});
  EXPECT_EQ(read_frames(reader, {2, 9}), read_frames(good, {2, 9}));
}

// A header with one sequence set (67 01) and one picture set (68 02), lengths of 4 bytes.
const std::vector<uint8_t> kHeader = {1, 100, 0, 30, 0xff, 0xe1, 0, 2, 0x67, 1, 1, 0, 2, 0x68, 2};

H264Packet scan(const std::vector<uint8_t>& packet) {
  return H264Scanner(kHeader).scan(packet);
}

TEST(H264Scanner, RepeatedSetsBeforeAnIdrPicture) {
  const H264Packet out = scan({0, 0, 0, 2, 0x67, 1, 0, 0, 0, 2, 0x68, 2, 0, 0, 0, 3, 0x65, 9, 9});
  EXPECT_TRUE(out.is_idr);
  EXPECT_FALSE(out.has_own_sets);
  EXPECT_EQ(out.repeated_bytes, 12u);
}

TEST(H264Scanner, OtherSetsAreKept) {
  const H264Packet out = scan({0, 0, 0, 2, 0x67, 1, 0, 0, 0, 2, 0x68, 3, 0, 0, 0, 3, 0x65, 9, 9});
  EXPECT_TRUE(out.has_own_sets);
  EXPECT_EQ(out.repeated_bytes, 0u);
  const H264Packet behind = scan({0, 0, 0, 2, 0x65, 9, 0, 0, 0, 2, 0x68, 3});
  EXPECT_TRUE(behind.has_own_sets);
}

TEST(H264Scanner, OtherPicturesAndBytesThatEndEarly) {
  EXPECT_FALSE(scan({0, 0, 0, 2, 0x41, 9}).is_idr);
  EXPECT_FALSE(scan({0, 0, 0, 2, 0x41, 9, 0, 0, 0, 2, 0x65, 9}).is_idr) << "the first one decides";
  EXPECT_EQ(scan({0, 0, 0, 2, 0x06, 9, 0, 0, 0, 2, 0x67, 1, 0, 0, 0, 1, 0x65}).repeated_bytes, 0u)
      << "only what stands in front is cut";
  EXPECT_EQ(scan({0, 0, 0, 2, 0x67, 1}).repeated_bytes, 0u) << "no picture";
  EXPECT_FALSE(scan({0, 0, 0, 200, 0x65}).is_idr);
  EXPECT_FALSE(scan({0, 0}).is_idr);
  EXPECT_FALSE(scan({}).is_idr);
  EXPECT_FALSE(scan({0, 0, 0, 0, 0, 0, 0, 0}).is_idr);
}

TEST(H264Scanner, HeadersOfAnotherKind) {
  EXPECT_FALSE(H264Scanner({}).is_usable());
  const std::vector<uint8_t> start_code = {0, 0, 0, 1, 0x67, 1, 2, 3};
  EXPECT_FALSE(H264Scanner(start_code).is_usable());
  for (size_t size = 0; size < kHeader.size(); ++size) {
    EXPECT_FALSE(H264Scanner(std::span(kHeader).first(size)).is_usable()) << size;
  }
  EXPECT_TRUE(H264Scanner(kHeader).is_usable());
}

}  // namespace
}  // namespace longship::io
