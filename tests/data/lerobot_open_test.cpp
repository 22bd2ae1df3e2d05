// Opening: metadata faults beyond the catalogue, messages, windows, the reader pool.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/fs.h"
#include "data/checks.h"
#include "data/lerobot/info.h"
#include "data/lerobot/json_text.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/lerobot/reader_pool.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using testing::dataset_path;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::scratch_dir;

std::string error_of(const fs::path& root) {
  try {
    open_lerobot(root);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

fs::path copy_of(const std::string& base, const std::string& name) {
  const fs::path root = scratch_dir(name);
  fs::copy(dataset_path(base), root, fs::copy_options::recursive);
  return root;
}

void replace_in(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path, 1 << 20);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  fs::remove(path);
  std::ofstream(path) << text;
}

TEST(LerobotOpen, EmptyFolderAndMissingFolderNameTheFile) {
  const fs::path empty = scratch_dir("empty_dataset");
  EXPECT_THAT(error_of(empty), HasSubstr((empty / "meta/info.json").string()));
  EXPECT_THAT(error_of("/nowhere/pusht"), HasSubstr("/nowhere/pusht/meta/info.json"));
  EXPECT_THAT(error_of("/nowhere/pusht"), HasSubstr("no readable folder"));
}

TEST(LerobotOpen, UnsupportedVersionsAreListed) {
  const fs::path root = copy_of("broken/base_v21", "version");
  replace_in(root / "meta/info.json", "\"v2.1\"", "\"v1.6\"");
  EXPECT_THAT(error_of(root), HasSubstr("codebase_version is \"v1.6\""));
  EXPECT_THAT(error_of(root), HasSubstr("v2.0, v2.1 and v3.0"));
}

TEST(LerobotOpen, Version20ReadsItsStatsFile) {
  const fs::path root = copy_of("broken/base_v21", "version20");
  replace_in(root / "meta/info.json", "\"v2.1\"", "\"v2.0\"");
  fs::remove(root / "meta/episodes_stats.jsonl");
  std::ofstream(root / "meta/stats.json")
      << R"({"action": {"min": [0,1,2,3,4,5], "max": [9,9,9,9,9,9], "mean": [1,1,1,1,1,1],)"
      << R"( "std": [NaN,1,1,1,1,1]}})";
  const auto dataset = open_lerobot(root);
  EXPECT_EQ(dataset->format(), "LeRobot v2.0");
  EXPECT_EQ(dataset->size(), 28);
  EXPECT_EQ(dataset->stats().at("action").min, (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_TRUE(std::isnan(dataset->stats().at("action").std[0]));
  EXPECT_EQ(dataset->stats().at("action").source, "meta/stats.json");
}

TEST(LerobotOpen, AllFaultsAreListedInOneError) {
  const fs::path root = copy_of("broken/base_v21", "many_faults");
  fs::remove(root / "data/chunk-000/episode_000001.parquet");
  fs::remove(root / "videos/chunk-000/observation.images.top/episode_000002.mp4");
  replace_in(root / "meta/info.json", "\"fps\": 10", "\"fps\": 0");
  const std::string error = error_of(root);
  EXPECT_THAT(error, HasSubstr("3 faults"));
  EXPECT_THAT(error, HasSubstr("ERROR fps meta/info.json: fps is 0"));
  EXPECT_THAT(error,
              HasSubstr("ERROR missing-file data/chunk-000/episode_000001.parquet: the table "
                        "of episode 1 is missing"));
  EXPECT_THAT(error, HasSubstr("observation.images.top for episode 2 is missing"));
}

TEST(LerobotOpen, DamagedInfoNamesLineAndColumn) {
  const fs::path root = copy_of("broken/base_v21", "damaged_info");
  replace_in(root / "meta/info.json", "\"fps\": 10,", "\"fps\": 10");
  EXPECT_THAT(error_of(root), HasSubstr("ERROR json-syntax meta/info.json"));
}

TEST(LerobotOpen, TemplatesMayNotLeaveTheFolder) {
  const fs::path root = copy_of("broken/base_v21", "template");
  replace_in(root / "meta/info.json", "data/chunk-", "../chunk-");
  EXPECT_THAT(error_of(root), HasSubstr("leaves the dataset's folder"));
}

TEST(LerobotOpen, UnknownTaskNumberIsFound) {
  const fs::path root = copy_of("broken/base_v21", "task_number");
  replace_in(root / "meta/tasks.jsonl", "\"task_index\": 1", "\"task_index\": 5");
  EXPECT_THAT(error_of(root), HasSubstr("ERROR task-index episode 1: row 0 has task_index 1"));
}

TEST(LerobotOpen, FactsOfAGoodDataset) {
  const auto dataset = open_lerobot(dataset_path("two_cam_v30"));
  EXPECT_EQ(dataset->format(), "LeRobot v3.0");
  EXPECT_EQ(dataset->fps(), 30);
  EXPECT_EQ(dataset->episodes().size(), 8u);
  EXPECT_EQ(dataset->tasks().size(), 3u);
  EXPECT_THAT(dataset->cameras(),
              ElementsAre("observation.images.cam_high", "observation.images.cam_right_wrist"));
  const Feature* depth = dataset->find_feature("observation.depth.cam_high");
  ASSERT_NE(depth, nullptr);
  EXPECT_EQ(depth->width(), 24 * 32);
  EXPECT_EQ(depth->kind, FeatureKind::kNumeric);
  EXPECT_EQ(dataset->find_feature("action")->dim_names[3], "left_forearm_roll");
}

TEST(LerobotOpen, ConstantJointsAreWarnedAbout) {
  std::string text;
  for (const Finding& finding : check_dataset(dataset_path("two_cam_v30"))) {
    EXPECT_NE(finding.severity, Severity::kError) << format_finding(finding);
    text += format_finding(finding) + "\n";
  }
  EXPECT_THAT(text, HasSubstr("WARN constant-column action[3]: it is 0 in all 790 rows"));
}

TEST(LerobotOpen, ShippedPushtHasNoFindings) {
  for (const std::string name : {"pusht_v30", "pusht_v21"}) {
    for (const Finding& finding : check_dataset(dataset_path(name))) {
      EXPECT_EQ(finding.code, "image-std") << format_finding(finding);
    }
  }
}

TEST(LerobotOpen, UsedColumnsDecideWhatNonFiniteValuesMean) {
  const fs::path root = scratch_dir("unused_nan");
  fs::copy(dataset_path("broken/base_v21"), root, fs::copy_options::recursive);
  const fs::path files = dataset_path("broken/cases/nan-in-action/files");
  fs::copy(files, root, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  EXPECT_THAT(error_of(root), HasSubstr("ERROR non-finite action[2], episode 1, frame 3"));
  OpenOptions options;
  options.used_columns = {"observation.state"};
  EXPECT_EQ(open_lerobot(root, options)->size(), 28);
}

class WindowTest : public ::testing::Test {
 protected:
  std::unique_ptr<Dataset> dataset_ = open_lerobot(dataset_path("broken/base_v21"));

  std::string error_of_get(int64_t id, const WindowSpec& windows) const {
    try {
      dataset_->get(id, windows);
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(WindowTest, ChunkStopsAtTheEpisodesEnd) {
  // Episode 1 has 7 frames and begins at sample 12.
  WindowSpec windows;
  windows.columns["frame_index"] = {0, 1, 2, 3, 4};
  const RawSample sample = dataset_->get(12 + 4, windows);
  EXPECT_THAT(sample.columns.at("frame_index").values, ElementsAre(4, 5, 6, 6, 6));
  EXPECT_THAT(sample.columns.at("frame_index").is_pad, ElementsAre(0, 0, 0, 1, 1));
}

TEST_F(WindowTest, OffsetsKeepTheirOrderAndMayRepeatOrLieFarOutside) {
  WindowSpec windows;
  windows.columns["frame_index"] = {150, -1, 2, 2, INT64_MIN, INT64_MAX};
  windows.columns["action"] = {};
  windows.cameras["observation.images.top"] = {};
  const RawSample sample = dataset_->get(12, windows);
  EXPECT_THAT(sample.columns.at("frame_index").values, ElementsAre(6, 0, 2, 2, 0, 6));
  EXPECT_THAT(sample.columns.at("frame_index").is_pad, ElementsAre(1, 1, 0, 0, 1, 1));
  EXPECT_EQ(sample.columns.at("action").num_offsets, 0);
  EXPECT_EQ(sample.columns.at("action").width, 6);
  EXPECT_TRUE(sample.cameras.at("observation.images.top").frames.empty());
}

TEST_F(WindowTest, RepeatedPicturesAreShared) {
  WindowSpec windows;
  windows.cameras["observation.images.top"] = {-5, 1, 0, 1};
  const RawSample sample = dataset_->get(12, windows);
  const CameraWindow& top = sample.cameras.at("observation.images.top");
  EXPECT_EQ(top.frames[0], top.frames[2]);
  EXPECT_EQ(top.frames[1], top.frames[3]);
  EXPECT_NE(top.frames[0], top.frames[1]);
  EXPECT_THAT(top.is_pad, ElementsAre(1, 0, 0, 0));
}

TEST_F(WindowTest, ColumnsOnlyTouchesNoVideo) {
  WindowSpec windows;
  windows.columns["action"] = {0};
  windows.cameras["observation.images.top"] = {0};
  EXPECT_TRUE(dataset_->get_columns(3, windows).cameras.empty());
}

TEST_F(WindowTest, UnknownNamesAreAnsweredWithTheKnownOnes) {
  WindowSpec columns, cameras;
  columns.columns["actions"] = {0};
  cameras.cameras["front"] = {0};
  EXPECT_THAT(error_of_get(0, columns), HasSubstr("no numeric column 'actions'"));
  EXPECT_THAT(error_of_get(0, columns), HasSubstr("observation.state"));
  EXPECT_THAT(error_of_get(0, cameras), HasSubstr("no camera 'front'"));
  EXPECT_THAT(error_of_get(0, cameras), HasSubstr("observation.images.wrist"));
  EXPECT_THAT(error_of_get(28, {}), HasSubstr("sample 28 does not exist"));
  EXPECT_THAT(error_of_get(-1, {}), HasSubstr("sample -1 does not exist"));
}

TEST(WindowErrors, AVideoThatVanishesIsNamedWithEpisodeAndFrame) {
  const fs::path root = copy_of("broken/base_v21", "vanishing");
  const auto dataset = open_lerobot(root);
  fs::remove(root / "videos/chunk-000/observation.images.wrist/episode_000001.mp4");
  WindowSpec windows;
  windows.cameras["observation.images.wrist"] = {0};
  try {
    dataset->get(12 + 2, windows);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("episode 1, frame 2, camera observation.images.wrist"));
    EXPECT_THAT(error.what(), HasSubstr("episode_000001.mp4"));
  }
}

TEST(ReaderPool, KeepsABoundedNumberOfReadersAndReusesThem) {
  std::vector<fs::path> files;
  constexpr int64_t kFiles = lerobot::ReaderPool::kReadersPerUser + 8;
  const fs::path folder = scratch_dir("reader_pool");
  for (int64_t i = 0; i < kFiles; ++i) {
    files.push_back(folder / fmt::format("{}.mp4", i));
    fs::copy_file(dataset_path("pusht_v21") /
                      fmt::format("videos/chunk-000/observation.image/episode_{:06d}.mp4", i % 24),
                  files.back());
  }
  lerobot::ReaderPool pool(files);
  std::vector<uint8_t> picture(96 * 96 * 3);
  for (int64_t i = 0; i < kFiles; ++i) pool.acquire(i).reader().read_rgb(0, picture.data());
  EXPECT_EQ(pool.num_idle(), lerobot::ReaderPool::kReadersPerUser);
  {
    auto lease = pool.acquire(kFiles - 1);
    EXPECT_EQ(lease.reader().statistics().frames_read, 1);
    EXPECT_EQ(pool.num_idle(), lerobot::ReaderPool::kReadersPerUser - 1);
    lease.discard();
  }
  EXPECT_EQ(pool.num_idle(), lerobot::ReaderPool::kReadersPerUser - 1);
  EXPECT_EQ(pool.index(23), pool.index(23));
  const PictureStatistics statistics = pool.statistics();
  EXPECT_EQ(statistics.pictures_read, kFiles);
  EXPECT_EQ(statistics.decoders_opened, kFiles);
  EXPECT_EQ(statistics.decoders_reused, 1);
  EXPECT_EQ(statistics.decoders_idle, pool.num_idle());
}

TEST(Findings, FormatLeavesOutEmptyParts) {
  EXPECT_EQ(
      format_finding({Severity::kError, "fps", "meta/info.json", "fps is 0", "a number", "x"}),
      "ERROR fps meta/info.json: fps is 0; a number; x");
  EXPECT_EQ(format_finding({Severity::kInfo, "a", "b", "c", "", ""}), "INFO a b: c");
}

TEST(Findings, ManyOfOneKindAreSummarised) {
  Findings findings;
  for (int i = 0; i < 500; ++i) findings.error("nan", fmt::format("row {}", i), "NaN");
  for (int i = 0; i < 50; ++i) findings.warn("jitter", fmt::format("episode {}", i), "late");
  EXPECT_EQ(findings.num_errors(), 500);
  const std::vector<Finding> list = findings.list();
  EXPECT_EQ(list.size(), 200u + 10u + 2u);
  try {
    findings.throw_if_errors("data/x");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dataset data/x cannot be used, 500 faults"));
    EXPECT_THAT(error.what(), HasSubstr("300 more findings of this kind"));
    EXPECT_THAT(error.what(), Not(HasSubstr("jitter")));
  }
}

TEST(JsonText, PythonsNumbersBecomeStringsOutsideStringsOnly) {
  EXPECT_EQ(lerobot::standard_json(R"({"a": [NaN, -Infinity, Infinity, -1], "NaN": "x \" NaN"})"),
            R"({"a": ["NaN", "-Infinity", "Infinity", -1], "NaN": "x \" NaN"})");
  EXPECT_EQ(lerobot::standard_json("\xEF\xBB\xBF{}"), "{}");
}

TEST(PathTemplate, FillsNumbersAndNames) {
  EXPECT_EQ(
      lerobot::fill_template("videos/{video_key}/chunk-{chunk:03d}/{n}.mp4",
                             {{"video_key", "cam"}, {"chunk", int64_t{7}}, {"n", int64_t{1234}}}),
      "videos/cam/chunk-007/1234.mp4");
  EXPECT_THROW(lerobot::fill_template("{x}", {}), DataError);
  EXPECT_THROW(lerobot::fill_template("{x", {{"x", int64_t{1}}}), DataError);
  EXPECT_THROW(lerobot::fill_template("{x:5.2f}", {{"x", int64_t{1}}}), DataError);
  EXPECT_THROW(lerobot::fill_template("a/{x}/b", {{"x", "../.."}}), DataError);
}

}  // namespace
}  // namespace longship::data
