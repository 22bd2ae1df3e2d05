// New datasets from old ones: the same samples, bit for bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/broken_case.h"
#include "data/checks.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/lerobot/write/dataset_writer.h"
#include "io/parquet.h"
#include "io/video.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using lerobot::WriteOptions;
using testing::dataset_path;
using ::testing::HasSubstr;
using testing::scratch_dir;

WindowSpec windows_of(const Dataset& dataset, bool pictures) {
  WindowSpec windows;
  for (const Feature& feature : dataset.features()) {
    // Numbers that a new dataset counts anew.
    if (feature.name == "index" || feature.name == "episode_index" ||
        feature.name == "task_index") {
      continue;
    }
    if (feature.kind == FeatureKind::kNumeric) windows.columns[feature.name] = {0, 3};
    if (feature.kind == FeatureKind::kVideo && pictures) windows.cameras[feature.name] = {0};
  }
  return windows;
}

void expect_equal_samples(const RawSample& a, const RawSample& b) {
  ASSERT_EQ(a.frame, b.frame);
  ASSERT_EQ(a.timestamp_s, b.timestamp_s);
  ASSERT_EQ(a.task, b.task);
  ASSERT_EQ(a.columns.size(), b.columns.size());
  for (const auto& [name, values] : a.columns) {
    const std::vector<float>& other = b.columns.at(name).values;
    ASSERT_EQ(values.values.size(), other.size()) << name;
    // Bit for bit, NaN included.
    ASSERT_EQ(std::memcmp(values.values.data(), other.data(), 4 * other.size()), 0) << name;
    ASSERT_EQ(values.is_pad, b.columns.at(name).is_pad) << name;
  }
  ASSERT_EQ(a.cameras.size(), b.cameras.size());
  for (const auto& [name, camera] : a.cameras) {
    ASSERT_EQ(camera.frames[0]->rgb, b.cameras.at(name).frames[0]->rgb) << name;
  }
}

// Every sample of `part` is the sample of `whole` that `id_of` names.
void expect_same(const Dataset& whole, const Dataset& part,
                 const std::function<int64_t(int64_t)>& id_of, int64_t picture_step = 1,
                 const std::string& depth_camera = "") {
  WindowSpec with = windows_of(part, true);
  with.cameras.erase(depth_camera);
  const WindowSpec without = windows_of(part, false);
  for (int64_t id = 0; id < part.size(); ++id) {
    const bool pictures = id % picture_step == 0;
    const RawSample a =
        pictures ? whole.get(id_of(id), with) : whole.get_columns(id_of(id), without);
    const RawSample b = pictures ? part.get(id, with) : part.get_columns(id, without);
    ASSERT_NO_FATAL_FAILURE(expect_equal_samples(a, b)) << "sample " << id;
  }
}

int64_t same_id(int64_t id) {
  return id;
}

int64_t count_files(const fs::path& folder, const char* extension) {
  int64_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    count += entry.path().extension() == extension ? 1 : 0;
  }
  return count;
}

// No finding above INFO, and every INFO is about statistics.
void expect_clean(const fs::path& root) {
  for (const Finding& finding : check_dataset(root)) {
    EXPECT_TRUE(finding.code == "constant-column" || finding.severity == Severity::kInfo)
        << format_finding(finding);
  }
}

TEST(ConvertDataset, V21GivesTheSameSamples) {
  const fs::path root = scratch_dir("convert_v21") / "new";
  const auto summary = lerobot::convert_dataset(dataset_path("pusht_v21"), root, {});
  EXPECT_EQ(summary.num_episodes, 24);
  EXPECT_EQ(summary.num_frames, 2652);
  EXPECT_EQ(summary.num_data_files, 1);
  EXPECT_EQ(summary.num_video_files, 1);
  expect_clean(root);
  const auto old = open_lerobot(dataset_path("pusht_v21")), converted = open_lerobot(root);
  EXPECT_EQ(converted->format(), "LeRobot v3.0");
  EXPECT_EQ(converted->tasks(), old->tasks());
  ASSERT_EQ(converted->size(), old->size());
  expect_same(*old, *converted, same_id);
}

TEST(ConvertDataset, SizeLimitsAndChunksAreKept) {
  const fs::path root = scratch_dir("convert_small") / "new";
  WriteOptions options;
  options.data_file_bytes = 30 << 10;
  options.video_file_bytes = 150 << 10;
  options.files_per_chunk = 2;
  const auto summary = lerobot::convert_dataset(dataset_path("pusht_v21"), root, options);
  EXPECT_GT(summary.num_data_files, 3);
  EXPECT_GT(summary.num_video_files, 3);
  EXPECT_EQ(count_files(root / "data", ".parquet"), summary.num_data_files);
  EXPECT_EQ(count_files(root / "videos", ".mp4"), summary.num_video_files);
  EXPECT_TRUE(fs::exists(root / "data/chunk-001/file-001.parquet"));
  for (const auto& entry : fs::recursive_directory_iterator(root / "videos")) {
    if (entry.path().extension() == ".mp4") {
      // Container headers come on top of the packets.
      EXPECT_LT(fs::file_size(entry.path()), (150u << 10) + (16u << 10)) << entry.path();
    }
  }
  expect_clean(root);
  const auto old = open_lerobot(dataset_path("pusht_v21")), converted = open_lerobot(root);
  expect_same(*old, *converted, same_id, 7);
}

// What the official reader needs: frame k of an episode at exactly from_timestamp + k / fps, within
// its tolerance of 1e-4 s, addressed by round(time * average rate).
TEST(ConvertDataset, TimesAreExactForTheOfficialRule) {
  const fs::path root = scratch_dir("convert_times") / "new";
  lerobot::convert_dataset(dataset_path("pusht_v21"), root, {});
  const auto table = io::ParquetTable::open(root / "meta/episodes/chunk-000/file-000.parquet");
  const auto from = table.float64("videos/observation.image/from_timestamp");
  const auto to = table.float64("videos/observation.image/to_timestamp");
  const auto length = table.int64("length");
  const auto index =
      io::VideoIndex::build(root / "videos/observation.image/chunk-000/file-000.mp4");
  EXPECT_EQ(index->info().average_fps.num, 10 * index->info().average_fps.den);
  int64_t frame = 0;
  for (size_t e = 0; e < from.size(); ++e) {
    for (int64_t k = 0; k < length[e]; ++k, ++frame) {
      const auto timestamp = static_cast<double>(static_cast<float>(static_cast<double>(k) / 10));
      const double asked = from[e] + timestamp;
      ASSERT_EQ(std::llround(asked * index->info().average_fps.value()), frame);
      ASSERT_NEAR(index->info().pts_s[static_cast<size_t>(frame)], asked, 1e-4);
    }
    EXPECT_DOUBLE_EQ(to[e], static_cast<double>(frame) / 10);
  }
  EXPECT_EQ(index->info().num_frames, frame);
}

TEST(ConvertDataset, StatisticsAreThoseOfTheRows) {
  const fs::path root = scratch_dir("convert_stats") / "new";
  lerobot::convert_dataset(dataset_path("pusht_v21"), root, {});
  const auto written = parse_json_file(root / "meta/stats.json");
  const auto expected = parse_json_file(dataset_path("expected/pusht_v21") / "stats.json");
  for (const auto& [feature, entry] : expected.at("from_rows").items()) {
    for (const auto& [name, values] : entry.items()) {
      if (name == "count") {
        EXPECT_EQ(written.at(feature).at("count").at(0), values);
        continue;
      }
      for (size_t d = 0; d < values.size(); ++d) {
        const double want = values[d].get<double>();
        EXPECT_NEAR(written.at(feature).at(name).at(d).get<double>(), want,
                    1e-12 + 1e-10 * std::abs(want))
            << feature << " " << name;
      }
    }
  }
  // Pictures: what the source stores for every episode, put together as the library does it.
  const auto& library = expected.at("library").at("observation.image");
  for (const char* name : {"min", "max", "mean", "std"}) {
    for (size_t c = 0; c < 3; ++c) {
      EXPECT_NEAR(written.at("observation.image").at(name)[c][0][0].get<double>(),
                  library.at(name)[c][0][0].get<double>(), 1e-9)
          << name;
    }
  }
}

TEST(ConvertDataset, PixelStatisticsAreExact) {
  const fs::path root = scratch_dir("convert_pixels") / "new";
  WriteOptions options;
  options.pixels = true;
  lerobot::convert_dataset(dataset_path("two_cam_v30"), root, options);
  const auto written = parse_json_file(root / "meta/stats.json");
  const auto expected = parse_json_file(dataset_path("expected/two_cam_v30") / "stats.json");
  for (const auto& [camera, entry] : expected.at("from_video").items()) {
    for (const char* name : {"min", "max", "mean", "std"}) {
      for (size_t c = 0; c < 3; ++c) {
        EXPECT_NEAR(written.at(camera).at(name)[c][0][0].get<double>(),
                    entry.at(name)[c].get<double>(), 1e-12)
            << camera << " " << name;
      }
    }
  }
}

// Every base and every awkward dataset that opens converts, and gives the same samples.
class ConvertBroken : public ::testing::TestWithParam<std::string> {};

TEST_P(ConvertBroken, GivesTheSameSamples) {
  const testing::BrokenCase broken = testing::build_broken_case(GetParam());
  std::unique_ptr<Dataset> old;
  try {
    old = open_lerobot(broken.root);
  } catch (const DataError&) {
    const fs::path root = scratch_dir("convert_" + broken.id) / "new";
    EXPECT_THROW(lerobot::convert_dataset(broken.root, root, {}), DataError);
    EXPECT_FALSE(fs::exists(root));
    fs::remove_all(broken.root);
    return;
  }
  const fs::path root = scratch_dir("convert_" + broken.id) / "new";
  lerobot::convert_dataset(broken.root, root, {});
  const auto converted = open_lerobot(root);
  ASSERT_EQ(converted->size(), old->size());
  const bool is_depth = broken.id == "depth-ffv1-gray16-mkv";
  expect_same(*old, *converted, same_id, 1, is_depth ? "observation.images.top" : "");
  fs::remove_all(broken.root);
  fs::remove_all(root.parent_path());
}

INSTANTIATE_TEST_SUITE_P(Cases, ConvertBroken, ::testing::ValuesIn(testing::broken_case_names()),
                         longship::testing::broken_test_name);

TEST(ConvertDataset, DepthStaysExact) {
  const testing::BrokenCase broken = testing::build_broken_case("depth-ffv1-gray16-mkv");
  const fs::path root = scratch_dir("convert_depth") / "new";
  lerobot::convert_dataset(broken.root, root, {});
  std::vector<uint16_t> picture;
  int64_t row = 0;
  const int64_t lengths[] = {12, 7, 9};
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(root / "videos/observation.images.top")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<uint16_t> centre;
  for (const fs::path& file : files) {
    io::VideoReader reader = io::VideoReader::open(file);
    picture.resize(static_cast<size_t>(reader.info().width * reader.info().height));
    for (int64_t k = 0; k < reader.info().num_frames; ++k) {
      reader.read_gray16(k, picture.data());
      centre.push_back(picture[picture.size() / 2]);
    }
  }
  ASSERT_EQ(centre.size(), 28u);
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t k = 0; k < lengths[e]; ++k, ++row) {
      EXPECT_EQ(centre[static_cast<size_t>(row)], 1000 * e + 100 * k);
    }
  }
}

TEST(SplitDataset, EpisodesAreTheirOwnSamples) {
  for (const char* name : {"pusht_v30", "two_cam_v30", "pusht_v21"}) {
    const fs::path root = scratch_dir(std::string("split_") + name) / "new";
    const auto summary = lerobot::split_dataset(dataset_path(name), root, {5, 0, 3, 7}, {});
    EXPECT_EQ(summary.num_episodes, 4);
    expect_clean(root);
    const auto old = open_lerobot(dataset_path(name)), part = open_lerobot(root);
    const std::vector<int64_t> chosen = {0, 3, 5, 7};
    expect_same(*old, *part, [&](int64_t id) {
      const auto [episode, frame] = part->locate(id);
      return old->episodes()[static_cast<size_t>(chosen[static_cast<size_t>(episode)])]
                 .first_sample +
             frame;
    });
  }
}

TEST(SplitDataset, MergedPartsAreTheWhole) {
  for (const char* name : {"pusht_v30", "two_cam_v30"}) {
    const fs::path scratch = scratch_dir(std::string("merge_") + name);
    const auto old = open_lerobot(dataset_path(name));
    std::vector<int64_t> first = {0, 1, 2}, rest;
    for (const Episode& episode : old->episodes()) {
      if (episode.index > 2) rest.push_back(episode.index);
    }
    lerobot::split_dataset(dataset_path(name), scratch / "a", first, {});
    lerobot::split_dataset(dataset_path(name), scratch / "b", rest, {});
    const std::vector<fs::path> parts = {scratch / "a", scratch / "b"};
    lerobot::merge_datasets(parts, scratch / "whole", {});
    const auto whole = open_lerobot(scratch / "whole");
    ASSERT_EQ(whole->size(), old->size());
    expect_same(*old, *whole, same_id, 5);
    // Statistics do not depend on the way.
    for (const char* column : {"observation.state", "action"}) {
      const FeatureStats &a = whole->stats().at(column), &b = old->stats().at(column);
      for (size_t d = 0; d < a.mean.size(); ++d) {
        EXPECT_NEAR(a.mean[d], b.mean[d], 1e-5 * (1 + std::abs(b.mean[d])));
        EXPECT_NEAR(a.std[d], b.std[d], 1e-5 * (1 + b.std[d]));
      }
    }
  }
}

TEST(MergeDatasets, FormatsMixAndTasksAreUnited) {
  const fs::path root = scratch_dir("merge_formats") / "new";
  const std::vector<fs::path> sources = {dataset_path("broken/base_v21"),
                                         dataset_path("broken/base_v30")};
  const auto summary = lerobot::merge_datasets(sources, root, {});
  EXPECT_EQ(summary.num_episodes, 6);
  const auto a = open_lerobot(sources[0]), b = open_lerobot(sources[1]), whole = open_lerobot(root);
  EXPECT_EQ(whole->tasks(), a->tasks());
  ASSERT_EQ(whole->size(), 56);
  const WindowSpec windows = windows_of(*whole, true);
  for (int64_t id = 0; id < 56; ++id) {
    const Dataset& source = id < 28 ? *a : *b;
    expect_equal_samples(source.get(id % 28, windows), whole->get(id, windows));
  }
}

TEST(MergeDatasets, EveryDifferenceIsListed) {
  const fs::path root = scratch_dir("merge_differences") / "new";
  const std::vector<fs::path> sources = {dataset_path("broken/base_v21"),
                                         dataset_path("two_cam_v30")};
  try {
    lerobot::merge_datasets(sources, root, {});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("fps is 10 in"));
    EXPECT_THAT(error.what(), HasSubstr("feature observation.state is float32 [6] in"));
    EXPECT_THAT(error.what(), HasSubstr("feature observation.images.top of"));
    EXPECT_THAT(error.what(), HasSubstr("robot_type"));
  }
  EXPECT_FALSE(fs::exists(root));
}

TEST(SplitDataset, UnknownEpisodesAndExistingTargetsAreRefused) {
  const fs::path scratch = scratch_dir("split_refused");
  try {
    lerobot::split_dataset(dataset_path("pusht_v21"), scratch / "new", {99}, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no episode 99"));
    EXPECT_THAT(error.what(), HasSubstr("24 episodes, 0 .. 23"));
  }
  EXPECT_TRUE(fs::is_empty(scratch));
  fs::create_directories(scratch / "taken");
  EXPECT_THROW(lerobot::convert_dataset(dataset_path("broken/base_v21"), scratch / "taken", {}),
               DataError);
}

}  // namespace
}  // namespace longship::data
