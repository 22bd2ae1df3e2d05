// What a run takes from the files of a checkpoint that describe its robot.
#include "models/groot/processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/config/load.h"
#include "base/config/yaml.h"
#include "base/error.h"
#include "data/mapped_dataset.h"
#include "groot_described_robot.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using longship::testing::FakeDataset;
using testing::batch_of;
using testing::changed;
using testing::complete_stats;
using testing::config;
using testing::dataset;
using ::testing::ElementsAre;
using testing::Files;
using testing::files_of;
using testing::from_checkpoint;
using ::testing::HasSubstr;
using testing::Json;
using testing::kDescribed;
using testing::kHorizon;
using testing::logged;
using ::testing::Not;
using testing::text_of;
using testing::toy_tokens;
using testing::write;
using testing::written;

TEST(GrootProcessorUse, TheCheckpointDescribesTheRobot) {
  const FakeDataset d = dataset();
  const GrootConfig c = from_checkpoint();
  std::unique_ptr<GrootTransform> t;
  const std::string log = logged([&] { t = std::make_unique<GrootTransform>(c, d, toy_tokens); });
  EXPECT_THAT(log, HasSubstr("groups, views and rules of 'my_arm' are those of"));
  EXPECT_THAT(log, HasSubstr("processor_config.json: state arm, gripper; action arm, gripper; "
                             "views side, front"));
  EXPECT_EQ(t->embodiment(), 5);
  EXPECT_THAT(t->views(), ElementsAre(std::pair{"side", "observation.images.wrist"},
                                      std::pair{"front", "observation.images.front"}));
  const GrootStateAction& processor = t->groups().processor();
  EXPECT_THAT(processor.modality().state_groups, ElementsAre("arm", "gripper"));
  EXPECT_TRUE(processor.relative());
  EXPECT_TRUE(processor.options().use_percentiles);
  EXPECT_FALSE(processor.options().clip_outliers);
  EXPECT_EQ(processor.state_width(), 2 + 2) << "the gripper is a sine and a cosine";
  const auto b = batch_of(*t, d, {4});
  const data::RawSample sample = d.get(4, t->windows());
  const auto& raw = sample.columns.at("observation.state").values;
  const data::FeatureStats stats = data::completed_stats(d, "observation.state", {"mean", "std"});
  const float* state = b->state.const_data_ptr<float>();
  EXPECT_NEAR(state[0], (raw[0] - stats.mean[0]) / stats.std[0], 1e-6);
  EXPECT_NEAR(state[1], (raw[1] - stats.mean[1]) / stats.std[1], 1e-6);
  EXPECT_NEAR(state[2], std::sin(raw[4]), 1e-6);
  EXPECT_NEAR(state[3], std::cos(raw[4]), 1e-6);
  const at::Tensor back = t->denormalise_actions(b->actions, b.get());
  for (const size_t i : {0U, 1U, 3U, 4U, 7U, 11U}) {
    EXPECT_NEAR(back.const_data_ptr<float>()[i], sample.columns.at("action").values[i], 2e-6);
  }
}

TEST(GrootProcessorUse, KeysOfTheRecipeWin) {
  const FakeDataset d = dataset();
  GrootConfig c = from_checkpoint();
  c.use_percentiles = false;
  c.clip_outliers = true;
  c.relative_actions = false;
  c.mean_std_groups = {"state.gripper"};
  c.data.horizon = 2;
  c.data.cameras = {{"front", "front"}};
  const std::string log = logged([&] {
    const GrootTransform t(c, d, toy_tokens);
    const GrootStateAction& p = t.groups().processor();
    EXPECT_FALSE(p.options().use_percentiles);
    EXPECT_TRUE(p.options().clip_outliers);
    EXPECT_FALSE(p.relative());
    EXPECT_THAT(p.modality().mean_std_state, ElementsAre("gripper"));
    EXPECT_TRUE(p.modality().mean_std_action.empty());
    EXPECT_THAT(p.modality().sincos_state, ElementsAre("gripper")) << "not said by the recipe";
    EXPECT_THAT(p.modality().action_offsets, ElementsAre(0, 1));
    EXPECT_THAT(t.views(), ElementsAre(std::pair{"front", "observation.images.front"}));
  });
  EXPECT_THAT(log, HasSubstr("chunks of 3 actions; data.horizon says 2, which is used"));
  EXPECT_THAT(log, HasSubstr("'my_arm' sees side, front; data.cameras says front, which is used"));
  // A modality of the recipe's own leaves nothing to the checkpoint.
  c = from_checkpoint("{ broken");
  c.modality = (d.root_path / "meta" / "modality.json").string();
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_THAT(t.groups().processor().modality().state_groups,
              ElementsAre("spare", "gripper", "arm"));
  EXPECT_FALSE(t.groups().processor().options().use_percentiles);
}

TEST(GrootProcessorUse, ARecipeCanLeaveSwitchesToTheCheckpoint) {
  GrootConfig c(GrootVersion::kN16);
  const auto load = [&](const std::string& text) {
    config::load(config::parse_yaml_text("family: groot_n16\n" + text, "recipe.yaml"), c);
  };
  load("use_percentiles: true\nclip_outliers: false\n");
  EXPECT_EQ(c.use_percentiles, true);
  EXPECT_EQ(c.clip_outliers, false);
  EXPECT_EQ(c.relative_actions, std::nullopt);
  load("use_percentiles: auto\n");
  EXPECT_EQ(c.use_percentiles, std::nullopt);
  expect_error<ConfigError>([&] { load("relative_actions: yess\n"); },
                            {"relative_actions", "auto, true, false"});
}

TEST(GrootProcessorUse, ARobotOfOnesOwnNeedsNoDescription) {
  const FakeDataset d = dataset();
  GrootConfig c = from_checkpoint();
  c.embodiment = "new_embodiment";
  const std::string log = logged([&] {
    const GrootTransform t(c, d, toy_tokens);
    EXPECT_THAT(t.groups().processor().modality().state_groups,
                ElementsAre("spare", "gripper", "arm"));
    // The switches are the file's, whatever robots it describes.
    const GrootNumbers& numbers = t.groups().processor().options();
    EXPECT_TRUE(numbers.use_percentiles);
    EXPECT_FALSE(numbers.clip_outliers);
    EXPECT_TRUE(numbers.relative_actions);
    EXPECT_TRUE(t.groups().processor().modality().sincos_state.empty());
  });
  EXPECT_THAT(log,
              HasSubstr("does not describe 'new_embodiment': groups are those of the dataset"));
  c.use_percentiles = false;
  c.clip_outliers = true;
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_FALSE(t.groups().processor().options().use_percentiles);
  EXPECT_TRUE(t.groups().processor().options().clip_outliers);
  EXPECT_TRUE(t.groups().processor().options().relative_actions) << "not said by the recipe";
}

TEST(GrootProcessorUse, PicturesOfSeveralFrames) {
  const FakeDataset d = dataset();
  const GrootTransform one(from_checkpoint(), d, toy_tokens);
  const GrootConfig c = from_checkpoint(changed([](Json&, Json& robot) {
    robot["video"]["delta_indices"] = {-2, 0};
  }));
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_THAT(t.windows().cameras.at("observation.images.wrist"), ElementsAre(-2, 0));
  const auto b = batch_of(t, d, {4});
  EXPECT_THAT(b->pictures, ElementsAre(4));
  EXPECT_EQ(b->grids.size(), 4U);
  EXPECT_EQ(b->patches.size(0), 2 * batch_of(one, d, {4})->patches.size(0));
  EXPECT_THAT(t.prompt(d.get(4, t.windows())), HasSubstr("<image-4>"));
  t.check_dataset(d);
  // First all views of the earlier frame: only the first view is another picture here.
  data::RawSample sample = d.get(4, t.windows());
  auto black = std::make_shared<data::Image>(*d.picture);
  std::fill(black->rgb.begin(), black->rgb.end(), uint8_t{0});
  sample.cameras.at("observation.images.wrist").frames[0] = black;
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(t.prepare(sample));
  const auto batch = t.collate(items);
  const at::Tensor patches = groot_batch(*batch).patches;
  const int64_t rows = patches.size(0) / 4;
  for (const int64_t picture : {0, 1, 2, 3}) {
    EXPECT_EQ(
        patches.narrow(0, picture * rows, rows).equal(b->patches.narrow(0, picture * rows, rows)),
        picture != 0)
        << picture;
  }
}

TEST(GrootProcessorUse, StatisticsOfTheCheckpointByChoice) {
  const FakeDataset d = dataset();
  const std::string text = R"({"my_arm": {
    "state": {"arm": {"min": [0, 0], "max": [1, 1], "mean": [0.5, 1], "std": [2, 4],
                      "q01": [0, 0], "q99": [1, 1]},
              "gripper": {"min": [0], "max": [1], "mean": [0], "std": [1], "q01": [0],
                          "q99": [8]}},
    "action": {"arm": {"min": [0, 0], "max": [1, 1], "q01": [0, 0], "q99": [1, 1]},
               "gripper": {"mean": [0.25], "std": [0.5]}},
    "relative_action": {"arm": {"min": [[-2, -2], [-2, -2], [-2, -2]],
                                "max": [[2, 2], [2, 2], [2, 2]]}}}})";
  GrootConfig c = from_checkpoint();
  write(*c.checkpoint, "statistics.json", text);
  const auto first_state = [&](const GrootConfig& config) {
    return batch_of(GrootTransform(config, d, toy_tokens), d, {4})
        ->state.const_data_ptr<float>()[0];
  };
  const float raw = d.get(4, GrootTransform(c, d, toy_tokens).windows())
                        .columns.at("observation.state")
                        .values[0];
  EXPECT_NE(first_state(c), (raw - 0.5F) / 2) << "the dataset's own by default";
  c.statistics = "checkpoint";
  EXPECT_FLOAT_EQ(first_state(c), (raw - 0.5F) / 2);
  const GrootTransform t(c, d, toy_tokens);
  // They are what the next checkpoint keeps.
  const Files files = files_of(t, complete_stats(d, t));
  EXPECT_EQ(nlohmann::json::parse(text_of(files, "statistics.json")), nlohmann::json::parse(text));
  // A chunk of another length has other statistics.
  c.data.horizon = 2;
  expect_error<DataError>([&] { GrootTransform(c, d, toy_tokens); },
                          {"statistics.json", "3 steps", "another horizon"});
  c.data.horizon = kHorizon;
  write(*c.checkpoint, "statistics.json",
        R"({"my_arm": {"state": {"arm": {"min": [0], "max": [1]}}, "action": {}}})");
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"state.arm has 1 numbers", "has 2", "model.statistics=dataset"});
  write(*c.checkpoint, "statistics.json", R"({"gr1": {}})");
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"statistics.json has no 'my_arm'; it has: gr1"});
  fs::remove(fs::path(*c.checkpoint) / "statistics.json");
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"model.statistics", "statistics.json is not there"});
  c.checkpoint.reset();
  c.embodiment = "new_embodiment";
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"model.statistics", "model.checkpoint names none"});
}

TEST(GrootProcessorUse, WhatCannotBeUsedIsNamed) {
  const FakeDataset d = dataset();
  const auto open = [&](const GrootConfig& c) { GrootTransform(c, d, toy_tokens); };
  GrootConfig c = from_checkpoint();
  c.embodiment = "gr1";
  expect_error<ConfigError>(
      [&] { open(c); }, {"model.embodiment", "processor_config.json",
                         "modality_configs has no 'gr1'; it has: other, my_arm", "model.modality"});
  c = from_checkpoint();
  c.embodiment = "other";
  expect_error<ConfigError>([&] { open(c); },
                            {"'other' reads groups of which nothing says where they lie",
                             "meta/modality.json has state: spare, gripper, arm", "not state.leg",
                             "whole columns has state: state", "model.modality"});
  const auto broken = [&](const std::function<void(Json&, Json&)>& change) {
    const GrootConfig config = from_checkpoint(changed(change));
    return longship::testing::message_of<Error>([&] { open(config); });
  };
  EXPECT_THAT(broken([](Json&, Json& r) {
                r["video"]["modality_keys"] = {"front", "top"};
              }),
              ::testing::AllOf(HasSubstr("the view 'top' of 'my_arm' is no camera"),
                               HasSubstr("observation.images.front, observation.images.wrist"),
                               HasSubstr("data.cameras: {top: observation.images.front}")));
  EXPECT_THAT(broken([](Json&, Json& r) {
                r["action"]["delta_indices"] = {0, 2, 4};
              }),
              HasSubstr("my_arm: action.delta_indices[1] is 2"));
  EXPECT_THAT(broken([](Json&, Json& r) {
                r["state"]["delta_indices"] = {-1, 0};
              }),
              HasSubstr("state.delta_indices has 2 frames, the model reads 1"));
  EXPECT_THAT(broken([](Json& k, Json&) { k["exclude_state"] = true; }),
              HasSubstr("processor_kwargs.exclude_state is true"));
  EXPECT_THAT(broken([](Json& k, Json&) { k["use_tactile"] = true; }),
              HasSubstr("processor_kwargs.use_tactile is true"));
  EXPECT_THAT(broken([](Json& k, Json&) { k["use_percentiles"] = "yes"; }),
              HasSubstr("processor_kwargs.use_percentiles is neither true nor false"));
  EXPECT_THAT(broken([](Json&, Json& r) { r["video"]["delta_indices"] = Json::array(); }),
              HasSubstr("video.delta_indices is empty"));
  EXPECT_THAT(
      broken([](Json&, Json& r) { r["video"]["delta_indices"] = std::vector<int64_t>(65, -1); }),
      HasSubstr("my_arm.video.delta_indices has 65 frames, at most 64 are read"));
  EXPECT_THAT(broken([](Json&, Json& r) {
                r["video"]["delta_indices"] = {-3601, 0};
              }),
              HasSubstr("my_arm.video.delta_indices[0] is -3601; pictures of -3600 .. 0 frames"));
  EXPECT_THAT(broken([](Json&, Json& r) {
                r["video"]["delta_indices"] = {-1, 0, 1};
              }),
              HasSubstr("my_arm.video.delta_indices[2] is 1; pictures of -3600 .. 0 frames"));
  c = from_checkpoint(changed([](Json& k, Json&) {
    k["shortest_image_edge"] = 256;
    k["formalize_language"] = false;
  }));
  EXPECT_THAT(logged([&] { open(c); }),
              HasSubstr("shortest_image_edge is 256, model.shortest_edge 64; formalize_language is "
                        "false, here always true"));
}

TEST(GrootProcessorUse, LimitsOfFramesAreInside) {
  std::vector<int64_t> frames(64);
  std::iota(frames.begin(), frames.end(), -63);
  frames.front() = -3600;
  const GrootConfig c = from_checkpoint(
      changed([&](Json&, Json& robot) { robot["video"]["delta_indices"] = frames; }));
  EXPECT_EQ(groot_processor_of(c, "my_arm")->modality.view_offsets, frames);
}

TEST(GrootProcessorUse, NamesOfForeignFilesAreLoggedAsText) {
  const FakeDataset d = dataset(R"({
    "state": {"arm\u001b": {"start": 0, "end": 2}}, "action": {"arm": {"start": 0, "end": 2}},
    "video": {"side\u001b": {"original_key": "observation.images.wrist"}}})");
  GrootConfig c = from_checkpoint(changed([](Json& kwargs, Json& robot) {
    robot["state"]["modality_keys"] = {"arm\x1b"};
    robot["state"].erase("sin_cos_embedding_keys");
    robot["state"].erase("mean_std_embedding_keys");
    robot["video"]["modality_keys"] = {"side\x1b"};
    robot["action"] = {{"delta_indices", {0, 1, 2}}, {"modality_keys", {"arm"}}};
    kwargs["modality_configs"]["my_arm\x1b"] = robot;
  }));
  write(*c.checkpoint, "embodiment_id.json", R"({"my_arm\u001b": 5})");
  write(
      *c.checkpoint, "modality.json",
      R"({"state": {"arm\u001b": {"start": 1, "end": 3}}, "action": {"arm": {"start": 0, "end": 2}}})");
  c.embodiment = "my_arm\x1b";
  const std::string log = logged([&] {
    GrootTransform(c, d, toy_tokens);
    c.data.cameras = {{"front", "observation.images.front"}};
    GrootTransform(c, d, toy_tokens);
  });
  EXPECT_THAT(log, HasSubstr(R"(state.arm\x1b is 1 .. 3;)"));
  EXPECT_THAT(log, HasSubstr(R"(groups, views and rules of 'my_arm\x1b' are those of)"));
  EXPECT_THAT(log, HasSubstr(R"('my_arm\x1b' sees side\x1b; data.cameras says front)"));
  EXPECT_THAT(log, HasSubstr(R"(view side\x1b <- observation.images.wrist)"));
  EXPECT_THAT(log, Not(HasSubstr("arm\x1b")));
  EXPECT_THAT(log, Not(HasSubstr("side\x1b")));
}

TEST(GrootProcessorUse, PlacesThatContradictTheCheckpointsAreNamed) {
  const FakeDataset d = dataset();
  const GrootConfig c = from_checkpoint();
  write(*c.checkpoint, "modality.json",
        R"({"state": {"arm": {"start": 1, "end": 3}}, "action": {"arm": {"start": 0, "end": 2}}})");
  const std::string log = logged([&] {
    EXPECT_EQ(GrootTransform(c, d, toy_tokens).groups().ranges().find_state("arm")->begin, 0);
  });
  EXPECT_THAT(log, HasSubstr("modality.json: state.arm is 1 .. 3;"));
  EXPECT_THAT(log, HasSubstr("meta/modality.json says 0 .. 2, which is used"));
  EXPECT_THAT(log, Not(HasSubstr("action.arm is")));
}

std::shared_ptr<const data::Dataset> of_slot(const FakeDataset& d, int64_t slot) {
  data::DatasetMapping mapping;
  mapping.embodiment = slot;
  return data::map_dataset(std::make_shared<FakeDataset>(d), mapping);
}

TEST(GrootProcessorUse, ADatasetsSlotChoosesTheDescription) {
  const FakeDataset d = dataset();
  GrootConfig c = from_checkpoint();
  c.embodiment = "new_embodiment";
  EXPECT_EQ(groot_robot_of(c, d).tag, "new_embodiment");
  const auto mine = of_slot(d, 5);
  const GrootRobot robot = groot_robot_of(c, *mine);
  EXPECT_EQ(robot.tag, "my_arm");
  EXPECT_EQ(robot.slot, 5);
  EXPECT_THAT(GrootDatasetGroups(c, *mine).processor().modality().state_groups,
              ElementsAre("arm", "gripper"));
  EXPECT_EQ(groot_robot_of(c, *of_slot(d, 20)).tag, "gr1") << "published, not described";
  EXPECT_EQ(groot_robot_of(c, *of_slot(d, 6)).tag, "slot_6");
  write(*c.checkpoint, "embodiment_id.json", R"({"my_arm": 5, "other": 5})");
  expect_error<ConfigError>([&] { groot_robot_of(c, *mine); },
                            {"the embodiment 5", "several robots", "other, my_arm"});
  c.modality = (d.root_path / "meta" / "modality.json").string();
  EXPECT_EQ(groot_robot_of(c, *mine).slot, 5);
}

}  // namespace
}  // namespace longship::models
