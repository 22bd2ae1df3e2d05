// Forms of LeRobot datasets besides the shipped ones: v2.0, nested columns, windows beyond the
// episode.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "data/broken_case.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/mapped_dataset.h"
#include "data/stats.h"
#include "data/windows.h"
#include "support/paths.h"

namespace longship::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

nlohmann::json read(const fs::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}
void write(const fs::path& path, const nlohmann::json& json) {
  std::ofstream(path) << json.dump(2);
}

/// base_v21 as version 2.0 wrote datasets: one meta/stats.json, no statistics of episodes, the key
/// video_info.
fs::path make_v20() {
  const fs::path root = testing::scratch_dir("lerobot_v20") / "set";
  fs::copy(testing::dataset_path("broken/base_v21"), root, fs::copy_options::recursive);
  nlohmann::json info = read(root / "meta/info.json");
  info["codebase_version"] = "v2.0";
  for (auto& [name, feature] : info["features"].items()) {
    if (!feature.contains("info")) continue;
    feature["video_info"] = feature["info"];
    feature.erase("info");
  }
  write(root / "meta/info.json", info);
  fs::remove(root / "meta/episodes_stats.jsonl");
  const auto rows = open_lerobot(testing::dataset_path("broken/base_v21"));
  nlohmann::json stats;
  for (const char* name : {"observation.state", "action"}) {
    const FeatureStats exact = compute_stats(*rows, name);
    stats[name] = {
        {"mean", exact.mean}, {"std", exact.std}, {"min", exact.min}, {"max", exact.max}};
  }
  const nlohmann::json channel = nlohmann::json::array({{{0.5}}, {{0.4}}, {{0.3}}});
  stats["observation.images.top"] = {
      {"mean", channel}, {"std", channel}, {"min", channel}, {"max", channel}};
  write(root / "meta/stats.json", stats);
  return root;
}

TEST(LerobotV20, ReadsAsTheSameDataOfVersion21) {
  const fs::path root = make_v20();
  EXPECT_THAT(check_dataset(root), IsEmpty());
  const auto old = open_lerobot(root);
  const auto base = open_lerobot(testing::dataset_path("broken/base_v21"));
  EXPECT_EQ(old->format(), "LeRobot v2.0");
  ASSERT_EQ(old->size(), base->size());
  WindowSpec windows;
  windows.columns["action"] = {0, 1, 2, 3};
  windows.columns["observation.state"] = {0};
  for (const std::string& camera : base->cameras()) windows.cameras[camera] = {0};
  for (int64_t id = 0; id < base->size(); ++id) {
    const RawSample a = old->get(id, windows), b = base->get(id, windows);
    EXPECT_EQ(a.task, b.task);
    EXPECT_EQ(a.columns.at("action").values, b.columns.at("action").values);
    EXPECT_EQ(a.columns.at("action").is_pad, b.columns.at("action").is_pad);
    for (const auto& [camera, frames] : a.cameras) {
      EXPECT_EQ(frames.frames[0]->rgb, b.cameras.at(camera).frames[0]->rgb);
      EXPECT_EQ(testing::read_bar_code(*frames.frames[0]).frame, a.frame);
    }
  }
  fs::remove_all(root.parent_path());
}

TEST(LerobotV20, StatisticsAreThoseOfTheFileAndQuantilesOfTheRows) {
  const fs::path root = make_v20();
  const auto dataset = open_lerobot(root);
  const FeatureStats& stored = dataset->stats().at("action");
  EXPECT_EQ(stored.source, "meta/stats.json");
  EXPECT_TRUE(stored.q01.empty());
  const FeatureStats whole = completed_stats(*dataset, "action", {"q01", "q99", "mean"});
  const FeatureStats exact = compute_stats(*dataset, "action");
  EXPECT_EQ(whole.q01, exact.q01);
  EXPECT_NE(whole.q01, whole.min);
  EXPECT_THAT(whole.source, HasSubstr("rows"));
  // Of another robot.
  nlohmann::json stats = read(root / "meta/stats.json");
  stats["action"]["mean"] = stats["action"]["std"] = stats["action"]["min"] =
      stats["action"]["max"] = std::vector<double>(14, 0.5);
  write(root / "meta/stats.json", stats);
  try {
    open_lerobot(root);
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("action"), HasSubstr("14"), HasSubstr("has 6")));
  }
  // None at all: computed, and said so.
  fs::remove(root / "meta/stats.json");
  const std::vector<Finding> findings = check_dataset(root);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].severity, Severity::kInfo);
  EXPECT_EQ(findings[0].code, "stats-missing");
  EXPECT_EQ(findings[0].place, "meta/stats.json");
  fs::remove_all(root.parent_path());
}

TEST(LerobotNested, FieldsOfAStructAreFeaturesUnderDottedNames) {
  const auto built = testing::build_broken_case("types-state-struct");
  nlohmann::json info = read(built.root / "meta/info.json");
  info["features"]["observation.state.j4"] = {{"dtype", "float32"}, {"shape", {1}}};
  write(built.root / "meta/info.json", info);
  const auto dataset = open_lerobot(built.root);
  const std::vector<float> field = dataset->column_values("observation.state.j4");
  const std::vector<float> state = dataset->column_values("observation.state");
  ASSERT_EQ(state.size(), 28u * 6u);
  const auto base = open_lerobot(testing::dataset_path("broken/base_v21"));
  EXPECT_EQ(state, base->column_values("observation.state"));
  ASSERT_EQ(field.size(), 28u);
  for (size_t row = 0; row < 28; ++row) EXPECT_EQ(field[row], state[6 * row + 4]);
  fs::remove_all(built.root);
}

TEST(Windows, SecondsBecomeFrames) {
  EXPECT_THAT(frame_offsets(std::vector<double>{0, 0.1, -0.2, 0.1}, 10, "x"),
              ElementsAre(0, 1, -2, 1));
  EXPECT_THAT(frame_offsets(std::vector<double>{0.3333, 0.03333}, 30, "x"), ElementsAre(10, 1));
  EXPECT_THAT(frame_offsets(std::vector<double>{}, 30, "x"), IsEmpty());
  try {
    frame_offsets(std::vector<double>{0, 0.05}, 10, "model.action_times");
    ADD_FAILURE();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("model.action_times: 0.05 s"), HasSubstr("0 s (0 f"),
                                    HasSubstr("0.1 s (1 f")));
  }
  EXPECT_THROW(frame_offsets(std::vector<double>{NAN}, 10, "x"), ConfigError);
}

TEST(Windows, BeyondTheEpisodeEverythingIsPaddingAndOrderIsKept) {
  const auto dataset = open_lerobot(testing::dataset_path("broken/base_v21"));
  WindowSpec windows;
  windows.columns["action"] = {150, -150, 2, 0, 2};
  windows.columns["observation.state"] = {};
  windows.cameras["observation.images.top"] = {150, -3, 1};
  for (int64_t id = 0; id < dataset->size(); ++id) {
    const RawSample sample = dataset->get(id, windows);
    const int64_t length = std::vector<int64_t>{12, 7, 9}[static_cast<size_t>(sample.episode)];
    const WindowValues& action = sample.columns.at("action");
    const auto pad = [&](int64_t offset) {
      return sample.frame + offset < 0 || sample.frame + offset >= length ? 1 : 0;
    };
    EXPECT_THAT(action.is_pad, ElementsAre(1, 1, pad(2), 0, pad(2)));
    EXPECT_NEAR(action.values[0], 100 * sample.episode + length - 1 + 0.01, 2e-3);
    EXPECT_NEAR(action.values[6], 100 * sample.episode + 0.01, 2e-3);
    EXPECT_EQ(action.values[12], action.values[24]);
    EXPECT_EQ(sample.columns.at("observation.state").num_offsets, 0);
    const auto& frames = sample.cameras.at("observation.images.top").frames;
    EXPECT_EQ(testing::read_bar_code(*frames[0]).frame, length - 1);
    EXPECT_EQ(testing::read_bar_code(*frames[1]).frame, std::max<int64_t>(sample.frame - 3, 0));
  }
}

}  // namespace
}  // namespace longship::data
