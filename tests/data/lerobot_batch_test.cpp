// Reading a batch gives what reading its samples one by one gives, with fewer decoded pictures.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/sampler.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;

WindowSpec windows_of(const Dataset& dataset, std::vector<int64_t> camera_offsets) {
  WindowSpec windows;
  for (int64_t k = 0; k < 16; ++k) windows.columns["action"].push_back(k);
  for (const std::string& camera : dataset.cameras()) windows.cameras[camera] = camera_offsets;
  return windows;
}

std::vector<int64_t> random_ids(const Dataset& dataset, int64_t count, uint64_t seed) {
  std::vector<int64_t> ids;
  const IndexPermutation order(dataset.size(), seed, 0);
  for (int64_t i = 0; i < count; ++i) ids.push_back(order(i));
  return ids;
}

void expect_equal(const RawSample& a, const RawSample& b) {
  EXPECT_EQ(a.sample_id, b.sample_id);
  EXPECT_EQ(a.episode, b.episode);
  EXPECT_EQ(a.frame, b.frame);
  EXPECT_EQ(a.task, b.task);
  EXPECT_EQ(a.columns.at("action").values, b.columns.at("action").values);
  ASSERT_EQ(a.cameras.size(), b.cameras.size());
  for (const auto& [name, window] : a.cameras) {
    const CameraWindow& other = b.cameras.at(name);
    EXPECT_EQ(window.is_pad, other.is_pad);
    ASSERT_EQ(window.frames.size(), other.frames.size());
    for (size_t i = 0; i < window.frames.size(); ++i) {
      EXPECT_EQ(window.frames[i]->height, other.frames[i]->height);
      EXPECT_EQ(window.frames[i]->rgb, other.frames[i]->rgb) << name << " " << i;
    }
  }
}

class BatchTest : public ::testing::TestWithParam<std::string> {};

TEST_P(BatchTest, EqualsItsSamplesOneByOne) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const WindowSpec windows = windows_of(*dataset, {0, -3, -1, -3, 400});
  for (uint64_t seed = 0; seed < 3; ++seed) {
    std::vector<int64_t> ids = random_ids(*dataset, 24, seed);
    ids.push_back(ids[5]);  // twice in one batch
    ids.push_back(ids[7] > 0 ? ids[7] - 1 : 1);
    const std::vector<RawSample> batch = dataset->get_batch(ids, windows);
    ASSERT_EQ(batch.size(), ids.size());
    const auto alone = open_lerobot(testing::dataset_path(GetParam()));
    for (size_t i = 0; i < ids.size(); ++i) {
      SCOPED_TRACE(ids[i]);
      expect_equal(batch[i], alone->get(ids[i], windows));
    }
  }
}

TEST_P(BatchTest, APictureOfSeveralSamplesIsDecodedOnce) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const WindowSpec windows = windows_of(*dataset, {-1, 0});
  const int64_t cameras = static_cast<int64_t>(windows.cameras.size());
  std::vector<int64_t> ids;
  for (int64_t i = 10; i < 30; ++i) ids.push_back(i);
  const std::vector<RawSample> batch = dataset->get_batch(ids, windows);
  for (const auto& [name, window] : batch[4].cameras) {
    EXPECT_EQ(window.frames[1], batch[5].cameras.at(name).frames[0]) << "the same picture";
  }
  const PictureStatistics cost = dataset->picture_statistics();
  EXPECT_EQ(cost.pictures_read, 21 * cameras);
  EXPECT_LE(cost.pictures_decoded, 26 * cameras);
  EXPECT_EQ(cost.decoders_opened, cameras);
  EXPECT_EQ(cost.decoders_idle, cameras);
  EXPECT_GT(cost.index_bytes, 0);
  dataset->get_batch(ids, windows);
  EXPECT_EQ(dataset->picture_statistics().decoders_opened, cameras);
  EXPECT_EQ(dataset->picture_statistics().decoders_reused, cameras);
}

TEST_P(BatchTest, NoPictureOutlivesItsBatch) {
  const auto dataset = open_lerobot(testing::dataset_path(GetParam()));
  const WindowSpec windows = windows_of(*dataset, {0});
  std::vector<RawSample> batch = dataset->get_batch(random_ids(*dataset, 16, 1), windows);
  std::vector<std::weak_ptr<const Image>> pictures;
  for (const RawSample& sample : batch) {
    for (const auto& [name, window] : sample.cameras) pictures.push_back(window.frames[0]);
  }
  batch.clear();
  for (const auto& picture : pictures) EXPECT_TRUE(picture.expired());
}

INSTANTIATE_TEST_SUITE_P(Datasets, BatchTest,
                         ::testing::Values("pusht_v30", "pusht_v21", "two_cam_v30"));

TEST(Batch, ThreadsOnTheSameFiles) {
  const auto dataset = open_lerobot(testing::dataset_path("two_cam_v30"));
  const WindowSpec windows = windows_of(*dataset, {0});
  std::vector<std::vector<RawSample>> results(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        results[t] = dataset->get_batch(random_ids(*dataset, 32, 9), windows);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 1; t < results.size(); ++t) {
    for (size_t i = 0; i < results[0].size(); ++i) expect_equal(results[0][i], results[t][i]);
  }
}

TEST(Batch, ADamagedPictureIsNamedWithEpisodeFrameAndCamera) {
  const fs::path root = testing::scratch_dir("batch_damage") / "set";
  fs::copy(testing::dataset_path("pusht_v21"), root, fs::copy_options::recursive);
  const fs::path video = root / "videos/chunk-000/observation.image/episode_000003.mp4";
  std::ifstream in(video, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  in.close();
  const size_t media = bytes.find("mdat");
  for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 2000; ++i) {
    ASSERT_GT(i, media);
    bytes[i] = static_cast<char>(i * 37 + 11);
  }
  fs::permissions(video, fs::perms::owner_write, fs::perm_options::add);
  std::ofstream(video, std::ios::binary) << bytes;
  const auto dataset = open_lerobot(root);
  const WindowSpec windows = windows_of(*dataset, {0});
  const Episode& episode = dataset->episodes()[3];
  // Found one by one, then asked for in a batch with good ones around it.
  int64_t bad = -1;
  for (int64_t k = 0; k < episode.length && bad < 0; ++k) {
    try {
      dataset->get(episode.first_sample + k, windows);
    } catch (const DataError&) {
      bad = k;
    }
  }
  ASSERT_GE(bad, 0);
  const std::vector<int64_t> ids = {5, episode.first_sample + bad, episode.first_sample, 700};
  try {
    dataset->get_batch(ids, windows);
    FAIL() << "no error";
  } catch (const DataError& error) {
    const std::string text = error.what();
    for (const std::string& part :
         {std::string("episode 3, frame ") + std::to_string(bad) + ", camera observation.image",
          std::string("episode_000003.mp4")}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_EQ(dataset->get_batch(std::vector<int64_t>{5, 700}, windows).size(), 2u);
}

}  // namespace
}  // namespace longship::data
