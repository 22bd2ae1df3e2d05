// Pixels of the shipped datasets against those that the reference library returned.

#include <fmt/core.h>

#include <cmath>
#include <cstring>

#include "io/parquet.h"
#include "io/safetensors.h"
#include "io/video.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "video_support.h"

namespace longship::io {
namespace {

namespace fs = std::filesystem;
using longship::testing::dataset_path;
using longship::testing::read_frame;

/// The pictures of one camera in expected/<dataset>/samples.safetensors.
struct Expected {
  Expected(const std::string& dataset, const std::string& camera)
      : file(SafetensorsFile::open(dataset_path("expected/" + dataset) / "samples.safetensors")),
        frames(file.at("frames/" + camera)),
        index(file.at("frames/" + camera + ".index")) {}
  int64_t count() const { return frames.shape[0]; }
  int64_t dataset_index(int64_t k) const {
    int64_t value = 0;
    std::memcpy(&value, file.data(index) + 8 * k, 8);
    return value;
  }
  bool equals(int64_t k, const std::vector<uint8_t>& rgb) const {
    const auto bytes = frames.num_bytes() / static_cast<uint64_t>(count());
    return rgb.size() == bytes && std::memcmp(file.data(frames) + static_cast<uint64_t>(k) * bytes,
                                              rgb.data(), bytes) == 0;
  }
  SafetensorsFile file;
  TensorInfo frames, index;
};

struct EpisodeSpan {
  int64_t from = 0, to = 0, chunk = 0, file = 0;
  double start_s = 0;
};

std::vector<EpisodeSpan> read_spans(const fs::path& root, const std::string& camera) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(root / "meta/episodes")) {
    if (entry.path().extension() == ".parquet") files.push_back(entry.path());
  }
  std::vector<EpisodeSpan> spans;
  for (const fs::path& path : files) {
    const ParquetTable table = ParquetTable::open(path);
    const auto from = table.int64("dataset_from_index"), to = table.int64("dataset_to_index");
    const auto chunk = table.int64("videos/" + camera + "/chunk_index");
    const auto file = table.int64("videos/" + camera + "/file_index");
    const auto start = table.float64("videos/" + camera + "/from_timestamp");
    for (size_t i = 0; i < from.size(); ++i)
      spans.push_back({from[i], to[i], chunk[i], file[i], start[i]});
  }
  return spans;
}

void expect_pixels_of_v30(const std::string& dataset, const std::string& camera) {
  SCOPED_TRACE(dataset + " " + camera);
  const Expected expected(dataset, camera);
  const fs::path root = dataset_path(dataset);
  const std::vector<EpisodeSpan> spans = read_spans(root, camera);
  for (int64_t k = 0; k < expected.count(); ++k) {
    const int64_t index = expected.dataset_index(k);
    for (const EpisodeSpan& span : spans) {
      if (index < span.from || index >= span.to) continue;
      VideoReader reader =
          VideoReader::open(root / fmt::format("videos/{}/chunk-{:03d}/file-{:03d}.mp4", camera,
                                               span.chunk, span.file));
      const double fps = reader.info().average_fps.value();
      const double time = span.start_s + static_cast<double>(index - span.from) / fps;
      EXPECT_TRUE(expected.equals(k, read_frame(reader, std::llround(time * fps))))
          << "dataset index " << index;
    }
  }
}

TEST(VideoExpected, Av1OfPushtV30) {
  expect_pixels_of_v30("pusht_v30", "observation.image");
}

TEST(VideoExpected, H264OfTwoCamV30) {
  expect_pixels_of_v30("two_cam_v30", "observation.images.cam_high");
  expect_pixels_of_v30("two_cam_v30", "observation.images.cam_right_wrist");
}

TEST(VideoExpected, H264OfPushtV21) {
  const Expected expected("pusht_v21", "observation.image");
  const fs::path root = dataset_path("pusht_v21");
  int64_t first = 0, checked = 0;
  for (int episode = 0; episode < 24; ++episode) {
    VideoReader reader = VideoReader::open(
        root / fmt::format("videos/chunk-000/observation.image/episode_{:06d}.mp4", episode));
    for (int64_t k = 0; k < expected.count(); ++k) {
      const int64_t frame = expected.dataset_index(k) - first;
      if (frame < 0 || frame >= reader.info().num_frames) continue;
      EXPECT_TRUE(expected.equals(k, read_frame(reader, frame)))
          << "episode " << episode << " frame " << frame;
      ++checked;
    }
    first += reader.info().num_frames;
  }
  EXPECT_EQ(checked, expected.count());
  EXPECT_EQ(first, 2652);
}

}  // namespace
}  // namespace longship::io
