// Damaged datasets mended on demand: afterwards they are free of errors and give the right samples.

#include "data/lerobot/write/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/strings.h"
#include "data/broken_case.h"
#include "data/lerobot/lerobot_dataset.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::scratch_dir;

struct RepairCase {
  const char* id;
  const char* mended;  // words of a line that tells what was done; "" = nothing is said
  int64_t samples;
  bool timestamps = false;
};

// Whatever the catalogue calls an error or a warning and a rule can decide.
const RepairCase kCases[] = {
    {"counters-too-many-episodes", "total_episodes: 20", 28},
    {"counters-wrong-frames", "total_frames: 30", 28},
    {"episode-empty", "", 28},
    {"episode-listed-but-absent-v30", "episode 3: no row belongs to it", 28},
    {"episodes-tasks-disagree", "", 28},
    {"fps-string", "", 28},
    {"jsonl-crlf", "", 28},
    {"length-declared-12-rows-10", "episode 0: length 10", 26},
    {"rows-reversed-in-episode", "episode 1: rows sorted by frame_index", 28},
    {"rows-shuffled-in-file", "rows: sorted by column index", 28},
    {"stats-of-another-robot", "observation.state", 28},
    {"stats-zero-std-but-data-vary", "action[2]", 28},
    {"stats-missing-v21", "", 28},
    {"timestamps-wall-clock", "timestamps: frame k", 28, true},
    {"timestamps-drift", "timestamps: frame k", 28, true},
    {"timestamps-two-equal", "timestamps: frame k", 28, true},
    {"v30-row-ranges-permuted", "episode 0: rows 0..11", 28},
    {"v30-boundary-episode-wrong-data-file", "its rows lie in data/chunk-000/file-001.parquet",
     2652},
    {"v30-video-offset-not-reset", "which was subtracted", 2652},
};

void expect_bar_codes(const Dataset& dataset) {
  WindowSpec windows;
  windows.columns["observation.state"] = {0};
  for (const std::string& camera : dataset.cameras()) windows.cameras[camera] = {0};
  for (int64_t id = 0; id < dataset.size(); ++id) {
    const RawSample sample = dataset.get(id, windows);
    for (const auto& [name, camera] : sample.cameras) {
      const testing::BarCode code = testing::read_bar_code(*camera.frames[0]);
      ASSERT_EQ(code.frame, sample.frame) << name << " sample " << id;
      ASSERT_EQ(code.episode, sample.episode) << name << " sample " << id;
    }
    ASSERT_NEAR(sample.columns.at("observation.state").values[0],
                static_cast<double>(100 * sample.episode + sample.frame), 1e-3)
        << "sample " << id;
  }
}

class RepairDataset : public ::testing::TestWithParam<RepairCase> {};

TEST_P(RepairDataset, GivesASoundDatasetWithTheRightSamples) {
  const RepairCase& the = GetParam();
  const testing::BrokenCase broken = testing::build_broken_case(the.id);
  const fs::path root = scratch_dir(std::string("repair_") + the.id) / "new";
  lerobot::RepairOptions options;
  options.write.timestamps = the.timestamps;
  const auto summary = lerobot::repair_dataset(broken.root, root, options);
  EXPECT_THAT(join(summary.mended, "\n"), HasSubstr(the.mended));
  for (const Finding& finding : check_dataset(root)) {
    EXPECT_EQ(finding.severity, Severity::kInfo) << format_finding(finding);
  }
  const auto dataset = open_lerobot(root);
  EXPECT_EQ(dataset->size(), the.samples);
  EXPECT_TRUE(dataset->stats().contains("action"));
  if (broken.bar_codes_exact || the.samples <= 28) {
    expect_bar_codes(*dataset);
  } else {
    // The large base: the sound dataset tells what is right.
    const auto sound = open_lerobot(testing::dataset_path("pusht_v30"));
    WindowSpec windows;
    windows.columns["action"] = {0, 1};
    windows.cameras["observation.image"] = {0};
    for (int64_t id = 0; id < sound->size(); id += 13) {
      const RawSample a = sound->get(id, windows), b = dataset->get(id, windows);
      ASSERT_EQ(a.columns.at("action").values, b.columns.at("action").values);
      ASSERT_EQ(a.cameras.begin()->second.frames[0]->rgb, b.cameras.begin()->second.frames[0]->rgb);
    }
  }
  fs::remove_all(broken.root);
  fs::remove_all(root.parent_path());
}

std::string case_name(const ::testing::TestParamInfo<RepairCase>& test) {
  std::string name = test.param.id;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, RepairDataset, ::testing::ValuesIn(kCases), case_name);

TEST(RepairRefuses, WhatNoRuleCanDecide) {
  for (const auto& [id, word] :
       std::map<std::string, std::string>{{"nan-in-action", "action[2]"},
                                          {"video-one-frame-short", "11 frames"},
                                          {"timestamps-restart", "row 6"},
                                          {"fps-missing", "fps"},
                                          {"missing-video", ".mp4"},
                                          {"parquet-cut-40-bytes", "parquet"},
                                          {"length-declared-12-rows-14", "14 rows"}}) {
    const testing::BrokenCase broken = testing::build_broken_case(id);
    const fs::path root = scratch_dir("refuse_" + id) / "new";
    try {
      lerobot::repair_dataset(broken.root, root, {});
      ADD_FAILURE() << id << " was mended";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(word)) << id;
    }
    EXPECT_FALSE(fs::exists(root)) << id;
    fs::remove_all(broken.root);
  }
}

TEST(RepairDrops, NamedEpisodesAndNothingElse) {
  for (const auto& [id, episode] :
       std::map<std::string, int64_t>{{"nan-in-action", 1},
                                      {"episode-listed-but-absent-v21", 3},
                                      {"parquet-zero-bytes", 1},
                                      {"camera-missing-in-one-episode", 1},
                                      {"nan-in-state", 2}}) {
    const testing::BrokenCase broken = testing::build_broken_case(id);
    const fs::path root = scratch_dir("drop_" + id) / "new";
    lerobot::RepairOptions options;
    options.drop_episodes = {episode};
    const auto summary = lerobot::repair_dataset(broken.root, root, options);
    EXPECT_EQ(summary.written.num_episodes, episode == 3 ? 3 : 2) << id;
    for (const Finding& finding : check_dataset(root)) {
      EXPECT_NE(finding.severity, Severity::kError) << id << ": " << format_finding(finding);
    }
    fs::remove_all(broken.root);
    fs::remove_all(root.parent_path());
  }
  lerobot::RepairOptions options;
  options.drop_episodes = {9};
  EXPECT_THROW(lerobot::repair_dataset(testing::dataset_path("broken/base_v21"),
                                       scratch_dir("drop_unknown") / "new", options),
               ConfigError);
}

}  // namespace
}  // namespace longship::data
