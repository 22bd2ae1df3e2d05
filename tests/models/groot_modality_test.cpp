#include "models/groot/modality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "models/groot/embodiment.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::FakeDataset;
using ::testing::HasSubstr;

std::filesystem::path written(const std::string& name, const std::string& text) {
  const std::filesystem::path path = testing::scratch_dir("groot_modality") / name;
  std::ofstream(path) << text;
  return path;
}

GrootRanges ranges_of(const std::string& text) {
  return read_groot_ranges(written("modality.json", text), "observation.state", "action");
}

const char* const kLibero = R"({
  "state": {"x": {"start": 0, "end": 1}, "gripper": {"start": 6, "end": 8}},
  "action": {"pose": {"start": 0, "end": 6, "rep": "relative", "state_key": "x"},
             "gripper": {"start": 6, "end": 7, "original_key": "gripper.action"}},
  "video": {"wrist": {"original_key": "observation.images.wrist_image"}, "front": {}},
  "annotation": {"human.action.task_description": {"original_key": "task_index"}}
})";

TEST(GrootModality, RangesOfADataset) {
  const GrootRanges r = ranges_of(kLibero);
  ASSERT_EQ(r.state.size(), 2U);
  EXPECT_EQ(r.state[0].name, "x");
  EXPECT_EQ(r.state[1].begin, 6);
  EXPECT_EQ(r.state[1].width(), 2);
  EXPECT_EQ(r.state[1].column, "observation.state");
  EXPECT_EQ(r.find_action("gripper")->column, "gripper.action");
  EXPECT_EQ(r.find_action("pose")->column, "action");
  EXPECT_EQ(r.find_state("pose"), nullptr);
  EXPECT_TRUE(r.rules[0].relative);
  EXPECT_EQ(r.rules[0].state_key, "x");
  EXPECT_FALSE(r.rules[1].relative);
  EXPECT_THAT(r.video, ElementsAre(std::pair{"wrist", "observation.images.wrist_image"},
                                   std::pair{"front", "observation.images.front"}));
  EXPECT_EQ(r.annotation.at(0).second, "task_index");
  const GrootModality m = groot_modality_of(r, 3);
  EXPECT_THAT(m.action_groups, ElementsAre("pose", "gripper"));
  EXPECT_THAT(m.action_offsets, ElementsAre(0, 1, 2));
  EXPECT_THAT(m.views, ElementsAre("wrist", "front"));
  EXPECT_TRUE(m.any_relative());
  EXPECT_EQ(m.reference_of(0), "x");
  EXPECT_EQ(m.reference_of(1), "gripper");
}

TEST(GrootModality, BrokenRangesNameFileAndKey) {
  expect_error<DataError>([] { ranges_of(R"({"state": {"x": {"start": 0, "end": 1}}})"); },
                          {"modality.json", "no 'action'", "state"});
  expect_error<DataError>(
      [] {
        ranges_of(R"({"state": {"x": {"start": 0}}, "action": {"x": {"start": 0, "end": 1}}})");
      },
      {"modality.json: state.x", "no 'end'"});
  for (const char* entry : {R"({"start": 2, "end": 2})", R"({"start": -1, "end": 2})",
                            R"({"start": 0, "end": 99999999999})", R"({"start": 0, "end": 1.5})",
                            R"({"start": "a", "end": 2})", R"([0, 1])"}) {
    expect_error<DataError>(
        [&] {
          ranges_of(
              fmt::format(R"({{"state": {{"x": {}}}, "action": {{"a": {}}}}})", entry, entry));
        },
        {"modality.json: state.x"});
  }
  expect_error<DataError>([] { ranges_of("[1]"); }, {"modality.json"});
  expect_error<DataError>([] { ranges_of(R"({"state": {}, "action": {}})"); },
                          {"modality.json", "need a group each"});
  expect_error<DataError>(
      [] {
        ranges_of(R"({"state": {"x": {"start": 0, "end": 6}},
                      "action": {"x": {"start": 0, "end": 6, "rep": "sideways"}}})");
      },
      {"action.x.rep", "'SIDEWAYS'", "RELATIVE"});
  expect_error<DataError>(
      [] {
        ranges_of(R"({"state": {"x": {"start": 0, "end": 6}}, "action": {"x": {"start": 0, "end": 6,
                      "rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROTVEC"}}})");
      },
      {"action.x", "XYZ_ROTVEC"});
}

TEST(GrootModality, RangesAreCheckedAgainstTheDataset) {
  FakeDataset d;
  d.add_column("observation.state", 8, nullptr);
  d.add_column("action", 7, nullptr);
  GrootRanges r = ranges_of(kLibero);
  expect_error<DataError>([&] { check_groot_ranges(r, d, "modality.json"); },
                          {"action.gripper", "'gripper.action'", "fake/dataset"});
  r.action[1].column = "action";
  check_groot_ranges(r, d, "modality.json");
  r.state[1].end = 9;
  expect_error<DataError>([&] { check_groot_ranges(r, d, "modality.json"); },
                          {"state.gripper", "6 .. 9", "8 numbers"});
}

TEST(GrootModality, WholeColumnsAreOneGroupEach) {
  const GrootModality m = groot_modality_of(groot_whole_columns("s", 4, "a", 3), 2);
  EXPECT_THAT(m.state_groups, ElementsAre("state"));
  EXPECT_THAT(m.action_groups, ElementsAre("action"));
  m.check("test");
}

TEST(GrootModality, ConfigurationOfACheckpoint) {
  const auto golden = testing::golden_path("groot_preprocess/state_action/modality_config.json");
  const GrootModality m = read_groot_modality(golden, "new_embodiment");
  EXPECT_THAT(m.views, ElementsAre("wrist", "front"));
  EXPECT_THAT(m.state_groups, ElementsAre("arm", "pose", "joints", "gripper", "eef"));
  EXPECT_THAT(m.action_groups, ElementsAre("arm", "eef", "gripper", "base", "other"));
  EXPECT_THAT(m.action_offsets, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(m.mean_std_state, ElementsAre("pose"));
  EXPECT_THAT(m.mean_std_action, ElementsAre("base"));
  EXPECT_THAT(m.sincos_state, ElementsAre("joints"));
  EXPECT_TRUE(m.rules[1].relative && m.rules[1].pose);
  EXPECT_FALSE(m.rules[2].relative);
  EXPECT_EQ(m.reference_of(4), "arm");
  EXPECT_EQ(m.language_key, "annotation.human.action.task_description");
  expect_error<DataError>([&] { read_groot_modality(golden, "gr1"); },
                          {"modality_config.json", "'gr1'", "new_embodiment"});
  // The same inside a processor_config.json.
  const auto nested = written(
      "processor_config.json",
      fmt::format(
          R"({{"processor_kwargs": {{"modality_configs": {}}}}})",
          testing::golden_json("groot_preprocess/state_action/modality_config.json").dump()));
  EXPECT_EQ(read_groot_modality(nested, "new_embodiment").action_groups, m.action_groups);
}

TEST(GrootModality, BrokenConfigurations) {
  nlohmann::json good = testing::golden_json("groot_preprocess/state_action/modality_config.json");
  const auto message = [&](const std::function<void(nlohmann::json&)>& change) {
    nlohmann::json broken = good;
    change(broken["new_embodiment"]);
    const auto path = written("modality_config.json", broken.dump());
    return testing::message_of<DataError>([&] { read_groot_modality(path, "new_embodiment"); });
  };
  EXPECT_THAT(message([](auto& c) { c["action"]["action_configs"].erase(0); }),
              HasSubstr("new_embodiment.action.action_configs"));
  EXPECT_THAT(message([](auto& c) { c["action"]["mean_std_embedding_keys"] = {"leg"}; }),
              HasSubstr("the group 'leg'"));
  EXPECT_THAT(message([](auto& c) {
                c["state"]["modality_keys"] = {"arm", "arm"};
              }),
              HasSubstr("'arm' stands twice"));
  EXPECT_THAT(message([](auto& c) { c["state"].erase("delta_indices"); }),
              HasSubstr("new_embodiment.state: has no 'delta_indices'"));
  EXPECT_THAT(message([](auto& c) {
                c["state"]["delta_indices"] = {0, -1};
              }),
              HasSubstr("must ascend"));
  EXPECT_THAT(message([](auto& c) { c["action"]["modality_keys"] = {1}; }),
              HasSubstr("action.modality_keys[0] is no text"));
  EXPECT_THAT(message([](auto& c) { c.erase("state"); }), HasSubstr("no 'state'"));
}

TEST(GrootModality, StatisticsOfACheckpoint) {
  const GrootStatistics s = read_groot_statistics(
      testing::golden_path("groot_preprocess/state_action/statistics.json"), "new_embodiment");
  EXPECT_EQ(s.state.size(), 5U);
  EXPECT_EQ(s.action.at("arm").width, 5);
  EXPECT_FALSE(s.action.at("arm").per_step);
  const GrootGroupStats& relative = s.relative_action.at("eef");
  EXPECT_TRUE(relative.per_step);
  EXPECT_EQ(relative.steps, 5);
  EXPECT_EQ(relative.width, 9);
  EXPECT_EQ(relative.max.size(), 45U);
}

TEST(GrootModality, BrokenStatistics) {
  const auto message = [](const std::string& arm) {
    const auto path =
        written("statistics.json",
                fmt::format(R"({{"robot": {{"state": {{"arm": {}}}, "action": {{}}}}}})", arm));
    return testing::message_of<DataError>([&] { read_groot_statistics(path, "robot"); });
  };
  EXPECT_THAT(message(R"({"min": [0, NaN], "max": [1, 1]})"),
              HasSubstr("statistics.json: robot.state.arm.min[1] is nan"));
  EXPECT_THAT(message(R"({"min": [0, 1], "max": [1]})"),
              HasSubstr("state.arm.max has 1 x 1 numbers"));
  EXPECT_THAT(message(R"({"min": [[0, 1], [2]]})"), HasSubstr("state.arm.min[1]"));
  EXPECT_THAT(message(R"({"min": []})"), HasSubstr("state.arm.min is no list"));
  EXPECT_THAT(message(R"({"count": 3})"), HasSubstr("none of min, max"));
  EXPECT_THAT(message("3"), HasSubstr("state.arm is no object"));
  const auto path = written("statistics.json", R"({"robot": {"state": {}}})");
  expect_error<DataError>([&] { read_groot_statistics(path, "robot"); }, {"no 'action'"});
  expect_error<DataError>([&] { read_groot_statistics(path, "other"); }, {"no 'other'", "robot"});
}

TEST(GrootModality, RelativeStatisticsPassFingerprintsOver) {
  const auto path = written("relative_stats.json", R"({
    "__fingerprints__": {"arm": "abc"},
    "arm": {"min": [[0, 1], [2, 3], [4, 5]], "max": [[1, 2], [3, 4], [5, 6]]}})");
  const auto stats = read_groot_relative_stats(path);
  ASSERT_EQ(stats.size(), 1U);
  EXPECT_EQ(stats.at("arm").steps, 3);
  EXPECT_THAT(stats.at("arm").min, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(stats.at("arm").mean.empty());
}

TEST(GrootEmbodiment, PublishedSlots) {
  const auto slot = [](GrootVersion version, const char* tag) {
    const GrootEmbodiment e = groot_embodiment(version, tag, {});
    EXPECT_EQ(e.warning, "") << tag;
    return e.slot;
  };
  EXPECT_EQ(slot(GrootVersion::kN16, "oxe_google"), 0);
  EXPECT_EQ(slot(GrootVersion::kN16, "gr1"), 20);
  EXPECT_EQ(slot(GrootVersion::kN16, "behavior_r1_pro"), 24);
  EXPECT_EQ(slot(GrootVersion::kN17, "libero_sim"), 2);
  EXPECT_EQ(slot(GrootVersion::kN17, "real_r1_pro_sharpa_relative_eef_human"), 26);
  EXPECT_EQ(slot(GrootVersion::kN17, "xdof_relative_eef_relative_joint"), 27);
}

TEST(GrootEmbodiment, UnknownTagsTakeTheSlotForNewRobots) {
  const GrootEmbodiment e = groot_embodiment(GrootVersion::kN16, "libero_sim", {});
  EXPECT_EQ(e.slot, 10);
  EXPECT_THAT(e.warning, ::testing::AllOf(HasSubstr("'libero_sim'"), HasSubstr("libero_panda")));
}

TEST(GrootEmbodiment, ACheckpointsTableComesFirst) {
  const auto path = written("embodiment_id.json", R"({"libero_sim": 5, "mine": 31})");
  const auto ids = read_groot_embodiment_ids(path, 32);
  EXPECT_EQ(groot_embodiment(GrootVersion::kN17, "libero_sim", ids).slot, 5);
  EXPECT_EQ(groot_embodiment(GrootVersion::kN17, "mine", ids).slot, 31);
  EXPECT_EQ(groot_embodiment(GrootVersion::kN17, "simpler_env_widowx", ids).slot, 1);
  expect_error<DataError>([&] { read_groot_embodiment_ids(path, 31); },
                          {"embodiment_id.json", "mine", "31", "0 .. 30"});
  const auto broken = written("embodiment_id.json", R"({"mine": "a"})");
  expect_error<DataError>([&] { read_groot_embodiment_ids(broken, 32); }, {"mine"});
}

}  // namespace
}  // namespace longship::models
