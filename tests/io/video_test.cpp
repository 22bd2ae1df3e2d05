#include "io/video.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "base/error.h"
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

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Reads every frame of a file in four orders; all must carry their own number and be equal
/// whatever was read before.
void expect_exact_frames(const fs::path& path, int episode, int64_t expected_frames) {
  SCOPED_TRACE(path.string());
  const VideoIndexPtr index = VideoIndex::build(path);
  ASSERT_EQ(index->info().num_frames, expected_frames);
  VideoReader forward(index);
  std::vector<std::vector<uint8_t>> frames;
  for (int64_t i = 0; i < expected_frames; ++i) {
    frames.push_back(read_frame(forward, i));
    const auto code = read_bar_code(frames.back(), index->info().width);
    EXPECT_EQ(code.frame, i % 256);
    EXPECT_EQ(code.episode, episode) << "frame " << i;
    EXPECT_LT(code.error, 4.0) << "frame " << i;
  }
  EXPECT_EQ(forward.statistics().seeks, 1) << "rising order needs one start";
  VideoReader random(index), backward(index);
  for (int64_t i = expected_frames - 1; i >= 0; --i)
    EXPECT_EQ(read_frame(backward, i), frames[static_cast<size_t>(i)]) << i;
  std::mt19937 generator(5);
  for (int round = 0; round < 40; ++round) {
    const auto i = static_cast<int64_t>(generator() % static_cast<unsigned>(expected_frames));
    EXPECT_EQ(read_frame(random, i), frames[static_cast<size_t>(i)]) << i;
  }
  for (int64_t i = 0; i < expected_frames; ++i) {
    VideoReader fresh(index);
    EXPECT_EQ(read_frame(fresh, i), frames[static_cast<size_t>(i)]) << i;
  }
  // Several in one pass, by readers that stand anywhere.
  VideoReader passes(index);
  for (int round = 0; round < 40; ++round) {
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < expected_frames; ++i) {
      if (generator() % (round % 4 + 1u) == 0) wanted.push_back(i);
    }
    const auto pictures = read_frames(passes, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(pictures[i], frames[static_cast<size_t>(wanted[i])]) << wanted[i];
    }
  }
}

class VideoCodec : public ::testing::TestWithParam<const char*> {};

TEST_P(VideoCodec, EveryFrameCarriesItsNumberInAnyOrder) {
  const std::string name = GetParam();
  const bool is_matroska = name == "codec-ffv1-mkv";
  const int lengths[] = {12, 7, 9};
  for (int episode = 0; episode < 3; ++episode) {
    const std::string file =
        fmt::format("videos/chunk-000/observation.images.top/episode_00000{}.{}", episode,
                    is_matroska ? "mkv" : "mp4");
    expect_exact_frames(broken_file(name, "base_v21", file), episode, lengths[episode]);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, VideoCodec,
                         ::testing::Values("codec-av1-aom", "codec-av1-rav1e", "codec-ffv1-mkv",
                                           "codec-h264-10bit", "codec-h264-gop1",
                                           "codec-h264-gop250-no-bframes",
                                           "codec-h264-gop30-bframes", "codec-h264-yuv444p",
                                           "codec-h264-yuvj420p", "codec-hevc",
                                           "codec-hevc-open-gop", "codec-mjpeg", "codec-mpeg4",
                                           "size-63x47-yuv444p", "size-66x50-yuv420p-cropped"),
                         [](const ::testing::TestParamInfo<const char*>& instance) {
                           std::string name = instance.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Video, TwoHundredFramesAtTwoRates) {
  for (const char* name : {"video-200-frames-at-25", "video-200-frames-at-30"}) {
    const VideoIndexPtr index = VideoIndex::build(broken_file(name, "base_v21", kTop));
    ASSERT_EQ(index->info().num_frames, 200) << name;
    VideoReader reader(index);
    std::mt19937 generator(1);
    for (int round = 0; round < 100; ++round) {
      const auto i = static_cast<int64_t>(generator() % 200);
      EXPECT_EQ(read_bar_code(read_frame(reader, i), index->info().width).frame, i) << name;
      // A float32 time, as datasets store it, must lead to the frame whatever way it was rounded.
      const auto time =
          static_cast<float>(static_cast<double>(i) / index->info().average_fps.value());
      EXPECT_EQ(index->nearest_frame(time), i) << name;
    }
  }
}

TEST(Video, FactsOfAStream) {
  const VideoIndexPtr index = VideoIndex::build(dataset_path("pusht_v30") /
                                                "videos/observation.image/chunk-000/file-000.mp4");
  const VideoInfo& info = index->info();
  EXPECT_EQ(info.codec, "av1");
  EXPECT_EQ(info.decoder, "libdav1d");
  EXPECT_EQ(info.pixel_format, "yuv420p");
  EXPECT_EQ(info.width, 96);
  EXPECT_EQ(info.height, 96);
  EXPECT_EQ(info.average_fps.value(), 10.0);
  ASSERT_EQ(static_cast<int64_t>(info.pts_s.size()), info.num_frames);
  EXPECT_NEAR(info.pts_s.back(), static_cast<double>(info.num_frames - 1) / 10, 1e-9);
  EXPECT_NEAR(info.duration_s, static_cast<double>(info.num_frames) / 10, 1e-6);
  EXPECT_EQ(info.is_key_frame[0], 1);
  EXPECT_EQ(info.is_key_frame[1], 0) << "GOP 2";
  EXPECT_EQ(index->decode_cost(0), 1);
  EXPECT_EQ(index->decode_cost(1), 2);
  EXPECT_FALSE(info.is_depth);
  EXPECT_EQ(info.rotation_deg, 0);
}

TEST(Video, RandomAccessDecodesOnlyFromTheKeyFrame) {
  const VideoIndexPtr index = VideoIndex::build(dataset_path("pusht_v30") /
                                                "videos/observation.image/chunk-000/file-000.mp4");
  VideoReader reader(index);
  read_frame(reader, index->info().num_frames / 2 + 1);
  EXPECT_EQ(reader.statistics().seeks, 1);
  EXPECT_LE(reader.statistics().packets_decoded, 3);
  const int64_t before = reader.statistics().packets_decoded;
  read_frame(reader, index->info().num_frames / 2 + 1);
  EXPECT_EQ(reader.statistics().packets_decoded, before) << "the same frame again costs nothing";
  EXPECT_EQ(reader.statistics().frames_read, 2);
}

TEST(Video, AJumpForwardOverAKeyFrameRestartsThere) {
  const VideoIndexPtr index = VideoIndex::build(broken_file("codec-h264-gop1", "base_v21", kTop));
  VideoReader reader(index);
  read_frame(reader, 0);
  const int64_t before = reader.statistics().packets_decoded;
  read_frame(reader, 9);
  EXPECT_LE(reader.statistics().packets_decoded - before, 3);
}

TEST(Video, OddFrameRateIsKeptAsARational) {
  const fs::path dir = dataset_path("broken/cases") / "fps-29.97/files";
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (entry.path().extension() != ".mp4") continue;
    const VideoIndexPtr index = VideoIndex::build(entry.path());
    EXPECT_EQ(index->info().average_fps.num, 30000);
    EXPECT_EQ(index->info().average_fps.den, 1001);
    EXPECT_EQ(index->info().num_frames, 60);
    EXPECT_EQ(index->nearest_frame(59 * 1001 / 30000.0), 59);
    return;
  }
  FAIL() << "no video in " << dir;
}

TEST(Video, VariableRateKeepsFrameNumbers) {
  const fs::path path = broken_file("video-variable-rate", "base_v21", kTop);
  expect_exact_frames(path, 0, 12);
  const VideoIndexPtr index = VideoIndex::build(path);
  double shortest = 1e9, longest = 0;
  for (size_t i = 1; i < index->info().pts_s.size(); ++i) {
    shortest = std::min(shortest, index->info().pts_s[i] - index->info().pts_s[i - 1]);
    longest = std::max(longest, index->info().pts_s[i] - index->info().pts_s[i - 1]);
  }
  EXPECT_GT(longest, 1.2 * shortest);
}

TEST(Video, FullRangeBlackIsZero) {
  VideoReader reader = VideoReader::open(broken_file("codec-h264-yuvj420p", "base_v21", kTop));
  EXPECT_EQ(reader.info().pixel_format, "yuvj420p");
  const std::vector<uint8_t> rgb =
      read_frame(reader, 0);  // frame number 0: the first row of blocks is black
  int64_t sum = 0;
  for (size_t i = 0; i < 16 * 64 * 3; ++i) sum += rgb[i];
  EXPECT_LT(static_cast<double>(sum) / (16 * 64 * 3), 3.0);
}

TEST(Video, SmallestAndFlattestPictures) {
  VideoReader smallest = VideoReader::open(broken_file("size-1x1", "base_v21", kTop));
  EXPECT_EQ(smallest.info().width, 1);
  EXPECT_EQ(smallest.info().height, 1);
  std::vector<uint8_t> guarded(3 + 64, 0xAB);
  smallest.read_rgb(3, guarded.data());
  EXPECT_EQ(std::count(guarded.begin() + 3, guarded.end(), 0xAB), 64)
      << "nothing is written behind the picture";
  VideoReader flattest = VideoReader::open(broken_file("size-4096x16", "base_v21", kTop));
  EXPECT_EQ(flattest.info().width, 4096);
  EXPECT_EQ(flattest.info().height, 16);
  read_frame(flattest, 11);
}

TEST(Video, DepthVideoGivesItsNumbers) {
  for (int episode = 0; episode < 3; ++episode) {
    const std::string file =
        fmt::format("videos/chunk-000/observation.images.top/episode_00000{}.mp4", episode);
    VideoReader reader = VideoReader::open(broken_file("depth-ffv1-gray16-mkv", "base_v21", file));
    ASSERT_TRUE(reader.info().is_depth);
    std::vector<uint16_t> depth(static_cast<size_t>(reader.info().width * reader.info().height));
    for (int64_t k : {5, 0, 6, 3}) {
      reader.read_gray16(k, depth.data());
      EXPECT_EQ(*std::min_element(depth.begin(), depth.end()), 1000 * episode + 100 * k);
      EXPECT_EQ(*std::max_element(depth.begin(), depth.end()), 1000 * episode + 100 * k);
    }
    std::vector<uint8_t> rgb(depth.size() * 3);
    expect_error<DataError>([&] { reader.read_rgb(0, rgb.data()); }, {file, "gray16", "depth"});
  }
  VideoReader colour = VideoReader::open(dataset_path("broken/base_v21") / kTop);
  std::vector<uint16_t> depth(64 * 48);
  expect_error<DataError>([&] { colour.read_gray16(0, depth.data()); }, {kTop, "not 16-bit depth"});
}

TEST(Video, ReadersInThreadsShareOneIndex) {
  const VideoIndexPtr index =
      VideoIndex::build(broken_file("codec-h264-gop30-bframes", "base_v21", kTop));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      VideoReader reader(index);
      std::mt19937 generator(static_cast<unsigned>(t));
      for (int round = 0; round < 60; ++round) {
        const auto i = static_cast<int64_t>(generator() % 12);
        wrong[t] += read_bar_code(read_frame(reader, i), 64).frame == i ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(VideoDamage, FrameOutOfRangeNamesFileCodecAndFrame) {
  VideoReader reader = VideoReader::open(dataset_path("broken/base_v21") / kTop);
  std::vector<uint8_t> rgb(64 * 48 * 3);
  for (int64_t frame : {int64_t{12}, int64_t{-1}}) {
    expect_error<DataError>([&] { reader.read_rgb(frame, rgb.data()); },
                            {kTop, "h264", std::to_string(frame), "12 frames"});
  }
  EXPECT_EQ(read_bar_code(read_frame(reader, 4), 64).frame, 4) << "the reader still works";
}

TEST(VideoDamage, BytesOfTheLastFrameAreMissing) {
  const fs::path path = broken_file("video-header-claims-more", "base_v21", kTop);
  expect_error<DataError>([&] { VideoIndex::build(path); }, {path.string(), "12", "11"});
}

TEST(VideoDamage, OneFrameShortIsCounted) {
  EXPECT_EQ(
      VideoIndex::build(broken_file("video-one-frame-short", "base_v21", kTop))->info().num_frames,
      11);
  EXPECT_EQ(VideoIndex::build(broken_file("video-extra-frames-at-end", "base_v21", kTop))
                ->info()
                .num_frames,
            18);
}

TEST(VideoDamage, FilesThatAreNoVideos) {
  const fs::path dir = scratch_dir("video_open");
  expect_error<DataError>([&] { VideoIndex::build(dir / "absent.mp4"); },
                          {"absent.mp4", "No such file"});
  std::ofstream(dir / "empty.mp4");
  expect_error<DataError>([&] { VideoIndex::build(dir / "empty.mp4"); }, {"empty.mp4", "empty"});
  std::ofstream(dir / "text.mp4")
      << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n";
  expect_error<DataError>([&] { VideoIndex::build(dir / "text.mp4"); },
                          {"text.mp4", "cannot be read as a video"});
  std::ofstream(dir / "list.mp4") << "#EXTM3U\n#EXTINF:1,\n/etc/passwd\n";
  expect_error<DataError>([&] { VideoIndex::build(dir / "list.mp4"); }, {"list.mp4"});
  expect_error<DataError>([&] { VideoIndex::build(dir); }, {dir.string()});
}

TEST(VideoDamage, ACutFileIsRefused) {
  const fs::path dir = scratch_dir("video_cut");
  const std::string good = bytes_of(dataset_path("broken/base_v21") / kTop);
  for (double part : {0.2, 0.5, 0.8, 0.95}) {
    SCOPED_TRACE(part);
    std::ofstream(dir / "cut.mp4", std::ios::binary)
        << good.substr(0, static_cast<size_t>(part * static_cast<double>(good.size())));
    expect_error<DataError>([&] { VideoIndex::build(dir / "cut.mp4"); }, {"cut.mp4"});
  }
}

TEST(VideoDamage, AFileThatChangedAfterItWasIndexed) {
  const fs::path dir = scratch_dir("video_changed");
  fs::copy_file(dataset_path("broken/base_v21") / kTop, dir / "a.mp4");
  const VideoIndexPtr index = VideoIndex::build(dir / "a.mp4");
  std::ofstream(dir / "a.mp4", std::ios::app) << "more";
  expect_error<DataError>([&] { VideoReader reader(index); }, {"a.mp4", "changed"});
}

TEST(VideoDamage, OverwrittenPicturesAreNotConcealed) {
  const fs::path dir = scratch_dir("video_overwritten");
  std::string bytes = bytes_of(broken_file("codec-h264-gop250-no-bframes", "base_v21", kTop));
  const size_t media = bytes.find("mdat");
  ASSERT_NE(media, std::string::npos);
  const size_t media_bytes = bytes.size() / 2 - media;
  for (size_t i = media + media_bytes / 4; i < media + media_bytes; ++i)
    bytes[i] = static_cast<char>(i * 37);
  std::ofstream(dir / "a.mp4", std::ios::binary) << bytes;
  EXPECT_THROW(
      {
        VideoReader reader = VideoReader::open(dir / "a.mp4");
        for (int64_t i = 0; i < reader.info().num_frames; ++i) read_frame(reader, i);
      },
      DataError);
}

}  // namespace
}  // namespace longship::io
