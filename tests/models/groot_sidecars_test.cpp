// Writing the files that describe robots loses nothing, and what they say of others stays.
#include "models/groot/sidecars.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "base/error.h"
#include "data/mapped_dataset.h"
#include "groot_described_robot.h"
#include "models/groot/embodiment.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using longship::testing::expect_error;
using longship::testing::FakeDataset;
using longship::testing::golden_json;
using longship::testing::golden_path;
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
using testing::kPlaces;
using testing::logged;
using ::testing::Not;
using testing::read;
using testing::text_of;
using testing::toy_tokens;
using testing::write;
using testing::written;

const std::string kGolden = "groot_preprocess/state_action/";

/// Without keys that are null, which say nothing.
nlohmann::json without_nulls(const nlohmann::json& value) {
  if (!value.is_object()) return value;
  nlohmann::json out = nlohmann::json::object();
  for (const auto& [key, entry] : value.items()) {
    if (!entry.is_null()) out[key] = without_nulls(entry);
  }
  return out;
}

void expect_same_stats(const std::map<std::string, GrootGroupStats>& a,
                       const std::map<std::string, GrootGroupStats>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, x] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const GrootGroupStats& y = b.at(name);
    EXPECT_EQ(std::tie(x.width, x.steps, x.per_step), std::tie(y.width, y.steps, y.per_step));
    // Bits, not nearly.
    EXPECT_EQ(std::tie(x.min, x.max, x.mean, x.std, x.q01, x.q99),
              std::tie(y.min, y.max, y.mean, y.std, y.q01, y.q99))
        << name;
  }
}

void expect_same_modality(const GrootModality& a, const GrootModality& b) {
  EXPECT_EQ(
      std::tie(a.views, a.state_groups, a.action_groups, a.mean_std_state, a.mean_std_action,
               a.sincos_state, a.view_offsets, a.state_offsets, a.action_offsets, a.language_key),
      std::tie(b.views, b.state_groups, b.action_groups, b.mean_std_state, b.mean_std_action,
               b.sincos_state, b.view_offsets, b.state_offsets, b.action_offsets, b.language_key));
  ASSERT_EQ(a.rules.size(), b.rules.size());
  for (size_t i = 0; i < a.rules.size(); ++i) {
    const GrootActionRule &x = a.rules[i], &y = b.rules[i];
    EXPECT_EQ(std::tie(x.relative, x.pose, x.state_key, x.difference, x.format),
              std::tie(y.relative, y.pose, y.state_key, y.difference, y.format));
  }
}

/// The golden files as a run with these switches.
GrootDescription golden_description() {
  GrootDescription out;
  out.robot = {"new_embodiment", 10};
  out.modality =
      read_groot_modality(golden_path(kGolden + "modality_config.json"), "new_embodiment");
  out.statistics =
      read_groot_statistics(golden_path(kGolden + "statistics.json"), "new_embodiment");
  out.numbers = {.use_percentiles = true,
                 .clip_outliers = false,
                 .sincos_state = true,
                 .relative_actions = true};
  return out;
}

class GrootSidecars : public ::testing::TestWithParam<GrootVersion> {};
INSTANTIATE_TEST_SUITE_P(All, GrootSidecars,
                         ::testing::Values(GrootVersion::kN16, GrootVersion::kN17));

TEST_P(GrootSidecars, GoldenFilesSurviveWritingAndReading) {
  const GrootDescription golden = golden_description();
  const Files first = groot_sidecars(config(GetParam()), {&golden, 1});
  const fs::path folder = written("groot_sidecars", first);
  GrootDescription again = golden;
  again.modality = read_groot_modality(folder / "processor_config.json", "new_embodiment");
  again.statistics = read_groot_statistics(folder / "statistics.json", "new_embodiment");
  expect_same_modality(again.modality, golden.modality);
  expect_same_stats(again.statistics.state, golden.statistics.state);
  expect_same_stats(again.statistics.action, golden.statistics.action);
  expect_same_stats(again.statistics.relative_action, golden.statistics.relative_action);
  EXPECT_FALSE(golden.statistics.relative_action.empty());
  // The files themselves hold what the golden ones hold, number by number.
  EXPECT_EQ(without_nulls(read(
                folder /
                "processor_config.json")["processor_kwargs"]["modality_configs"]["new_embodiment"]),
            without_nulls(golden_json(kGolden + "modality_config.json").at("new_embodiment")));
  EXPECT_EQ(nlohmann::json(read(folder / "statistics.json")),
            golden_json(kGolden + "statistics.json"));
  const GrootProcessorSettings s = read_groot_processor_settings(folder / "processor_config.json");
  EXPECT_THAT(s.tags, ElementsAre("new_embodiment"));
  EXPECT_EQ(s.use_percentiles, true);
  EXPECT_EQ(s.clip_outliers, false);
  EXPECT_EQ(s.sincos_state, true);
  EXPECT_EQ(s.relative_actions, true);
  EXPECT_EQ(s.shortest_edge, 64);
  EXPECT_EQ(s.crop_fraction, 0.95);
  // N1.6's class takes no such argument.
  const bool is_n17 = GetParam() == GrootVersion::kN17;
  EXPECT_EQ(s.letterbox.has_value(), is_n17);
  EXPECT_EQ(read_groot_embodiment_ids(folder / "embodiment_id.json", 32).at("new_embodiment"), 10);
  EXPECT_EQ(groot_sidecars(config(GetParam()), {&again, 1}), first);
}

TEST_P(GrootSidecars, WhatTheFirstCheckpointSaysOfOthersStays) {
  const GrootDescription golden = golden_description();
  GrootConfig c = config(GetParam());
  c.checkpoint =
      written("groot_sidecars_first",
              {{"processor_config.json", kDescribed},
               {"embodiment_id.json", R"({"my_arm": 5, "new_embodiment": 10})"},
               {"statistics.json", R"({"my_arm": {"state": {"arm": {"min": [0.1], "max": [1]}},
                                       "action": {"arm": {"min": [0], "max": [1]}}},
                                       "new_embodiment": {"state": {}, "action": {}},
                                       "odd": {"state": {"arm": {"min": [NaN], "max": [1]}},
                                               "action": {}}})"}})
          .string();
  const fs::path folder = written("groot_sidecars", groot_sidecars(c, {&golden, 1}));
  const Json before = Json::parse(kDescribed)["processor_kwargs"];
  const Json after = read(folder / "processor_config.json")["processor_kwargs"];
  for (const char* tag : {"my_arm", "other"}) {
    EXPECT_EQ(after["modality_configs"][tag], before["modality_configs"][tag]);
  }
  EXPECT_EQ(after["extra"], before["extra"]);
  EXPECT_EQ(after["clip_outliers"], false);
  EXPECT_EQ(after["max_action_dim"], c.sizes().max_action_dim);
  EXPECT_EQ(read_groot_modality(folder / "processor_config.json", "new_embodiment").state_groups,
            golden.modality.state_groups);
  const Json statistics = read(folder / "statistics.json");
  EXPECT_EQ(statistics["my_arm"]["state"]["arm"]["min"][0], 0.1);
  EXPECT_FALSE(statistics.contains("odd")) << "NaN is no number for JSON";
  EXPECT_EQ(statistics["new_embodiment"]["state"].size(), golden.statistics.state.size());
  const auto ids = read_groot_embodiment_ids(folder / "embodiment_id.json", 32);
  EXPECT_EQ(ids.at("my_arm"), 5);
  EXPECT_EQ(ids.at(GetParam() == GrootVersion::kN17 ? "libero_sim" : "libero_panda"), 2);
}

/// Groups of a file of one's own, and every way to normalise.
GrootConfig trained() {
  GrootConfig c = config();
  c.modality = (written("groot_sidecars_own", {{"places.json", R"({
    "state": {"hand": {"start": 4, "end": 5}, "pose": {"start": 0, "end": 2},
              "rest": {"start": 2, "end": 4}},
    "action": {"pose": {"start": 1, "end": 3, "rep": "RELATIVE"},
               "hand": {"start": 3, "end": 4}},
    "video": {"wrist": {}, "front": {}},
    "annotation": {"human.task": {"original_key": "task_index"}}})"}}) /
                "places.json")
                   .string();
  c.use_percentiles = true;
  c.clip_outliers = false;
  c.relative_actions = true;
  c.mean_std_groups = {"state.rest"};
  c.sincos_state_groups = {"hand"};
  return c;
}

TEST(GrootSidecarsOfRuns, WrittenFilesGiveTheSameBatchesWithoutTheModality) {
  for (const char* const places : {"", kPlaces}) {
    const FakeDataset d = dataset(places);
    const GrootTransform first(trained(), d, toy_tokens);
    const Files files = files_of(first, complete_stats(d, first));
    ASSERT_THAT(text_of(files, "modality.json"), Not(""));
    GrootConfig c = config();
    c.checkpoint = written("groot_sidecars_tuned", files).string();
    const GrootTransform again(c, d, toy_tokens);
    EXPECT_EQ(again.views(), first.views());
    EXPECT_EQ(again.own_stats().size(), 1U);
    const auto a = batch_of(first, d, {1, 6, 12}), b = batch_of(again, d, {1, 6, 12});
    const auto left = a->tensors(), right = b->tensors();
    for (size_t i = 0; i < left.size(); ++i) {
      if (!left[i].second->defined()) continue;
      EXPECT_TRUE(left[i].second->equal(*right[i].second)) << left[i].first;
    }
    EXPECT_TRUE(first.denormalise_actions(a->actions, a.get())
                    .equal(again.denormalise_actions(b->actions, b.get())));
    EXPECT_EQ(files_of(again, complete_stats(d, again)), files);
  }
}

TEST(GrootSidecarsOfRuns, ACheckpointsOwnFilesComeFirst) {
  const FakeDataset d = dataset("");
  const GrootTransform first(trained(), d, toy_tokens);
  // As evaluation opens a checkpoint of a run whose first checkpoint is gone.
  GrootConfig c = config();
  c.checkpoint = "gone/groot";
  c.data.own_checkpoint =
      written("groot_sidecars_tuned", files_of(first, complete_stats(d, first)));
  EXPECT_EQ(GrootTransform(c, d, toy_tokens).views(), first.views());
  c.data.own_checkpoint.clear();
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"model.checkpoint: gone/groot is not there", "model.modality"});
}

/// The dataset's name for its groups, one of which is relative.
const char* const kOwnPlaces = R"({
  "state": {"spare": {"start": 2, "end": 4}, "grip": {"start": 4, "end": 5},
            "joints": {"start": 0, "end": 2}},
  "action": {"grip": {"start": 3, "end": 4}, "joints": {"start": 0, "end": 2, "rep": "RELATIVE"}},
  "video": {"front": {}}})";

/// A dataset of a mixture and the recipe as its transform gets it.
struct Part {
  std::shared_ptr<const data::Dataset> dataset;
  GrootConfig config;
};

Part part_of(const FakeDataset& d, const GrootConfig& c, int64_t slot = 0) {
  data::DatasetMapping mapping;
  mapping.embodiment = slot;
  return {data::map_dataset(std::make_shared<FakeDataset>(d), mapping), c};
}

/// What a run over all parts writes.
Files files_of_mixture(const std::vector<Part>& mixture) {
  std::map<std::string, data::FeatureStats> stats;
  std::vector<std::pair<std::string, std::unique_ptr<Transform>>> parts;
  for (const Part& part : mixture) {
    const std::string name(1, static_cast<char>('a' + parts.size()));
    auto transform = std::make_unique<GrootTransform>(part.config, *part.dataset, toy_tokens);
    for (const auto& [key, value] : complete_stats(*part.dataset, *transform)) {
      stats[name + "/" + key] = value;
    }
    parts.emplace_back(name, std::move(transform));
  }
  return files_of(*make_mixture_transform(std::move(parts)), stats);
}

void expect_same_numbers(const GrootNumbers& a, const GrootNumbers& b) {
  EXPECT_EQ(std::tie(a.use_percentiles, a.clip_outliers, a.sincos_state, a.relative_actions,
                     a.compose_poses),
            std::tie(b.use_percentiles, b.clip_outliers, b.sincos_state, b.relative_actions,
                     b.compose_poses));
}

/// Runs with the parts' recipes, but from the folder and with no switches of their own, make the
/// same batches and write the same files.
void expect_reopens(const std::vector<Part>& mixture, const Files& files) {
  const fs::path folder = written("groot_sidecars_mixture", files);
  for (const char* const statistics : {"dataset", "checkpoint"}) {
    std::vector<Part> again = mixture;
    for (size_t p = 0; p < mixture.size(); ++p) {
      GrootConfig& c = again[p].config;
      c.checkpoint = folder.string();
      c.statistics = statistics;
      c.use_percentiles = c.clip_outliers = c.relative_actions = std::nullopt;
      const data::Dataset& d = *mixture[p].dataset;
      const GrootTransform first(mixture[p].config, d, toy_tokens), second(c, d, toy_tokens);
      SCOPED_TRACE(first.groups().robot().tag + ", statistics: " + statistics);
      EXPECT_EQ(second.groups().robot().tag, first.groups().robot().tag);
      EXPECT_EQ(second.views(), first.views());
      expect_same_numbers(second.groups().processor().options(),
                          first.groups().processor().options());
      const auto a = batch_of(first, d, {1, 6, 12}), b = batch_of(second, d, {1, 6, 12});
      EXPECT_EQ(a->raw_state, b->raw_state);
      const auto left = a->tensors(), right = b->tensors();
      for (size_t i = 0; i < left.size(); ++i) {
        ASSERT_EQ(left[i].second->defined(), right[i].second->defined()) << left[i].first;
        if (!left[i].second->defined()) continue;
        EXPECT_TRUE(left[i].second->equal(*right[i].second)) << left[i].first;
      }
      EXPECT_TRUE(first.denormalise_actions(a->actions, a.get())
                      .equal(second.denormalise_actions(b->actions, b.get())));
    }
    EXPECT_EQ(files_of_mixture(again), files) << statistics;
  }
}

// The file's switches hold for the robot that the first checkpoint describes and for the one that
// it does not.
TEST(GrootSidecarsOfRuns, MixturesShareTheFiles) {
  const FakeDataset d = dataset();
  const FakeDataset other = dataset(kOwnPlaces, "groot_sidecars_other");
  for (const bool recipe_says : {false, true}) {
    GrootConfig c = from_checkpoint();
    if (recipe_says) {
      c.use_percentiles = false;
      c.clip_outliers = true;
    }
    GrootConfig own = c;
    own.embodiment = "new_embodiment";
    for (const Part& second : {part_of(other, own), part_of(other, c, 6)}) {
      for (const bool described_first : {true, false}) {
        std::vector<Part> mixture = {part_of(d, c), second};
        if (!described_first) std::swap(mixture[0], mixture[1]);
        for (const Part& part : mixture) {
          const GrootTransform t(part.config, *part.dataset, toy_tokens);
          expect_same_numbers(t.groups().processor().options(), {.use_percentiles = !recipe_says,
                                                                 .clip_outliers = recipe_says,
                                                                 .sincos_state = true,
                                                                 .relative_actions = true});
          EXPECT_TRUE(t.groups().processor().relative());
        }
        const Files files = files_of_mixture(mixture);
        EXPECT_EQ(text_of(files, "modality.json"), "") << "the parts read other groups";
        const auto robots =
            Json::parse(text_of(files, "processor_config.json"))["processor_kwargs"];
        EXPECT_EQ(robots["modality_configs"].size(), 3U) << "two, and one of the first checkpoint";
        expect_reopens(mixture, files);
      }
    }
  }
}

TEST(GrootSidecarsOfRuns, SwitchesThatDifferInAMixtureAreRefused) {
  const FakeDataset d = dataset();
  const FakeDataset other = dataset(kOwnPlaces, "groot_sidecars_other");
  const auto refused = [&](const std::string& name, const std::string& key, bool told,
                           const std::function<void(GrootConfig&)>& change) {
    // Off, so that groups of the recipe switch it on.
    const GrootConfig c = from_checkpoint(
        changed([](Json& kwargs, Json&) { kwargs["apply_sincos_state_encoding"] = false; }));
    GrootConfig own = c;
    own.embodiment = "new_embodiment";
    change(own);
    const auto says = [&](bool value, const char* tag, const FakeDataset& dataset) {
      return fmt::format("{} for '{}' of {}", value, tag, dataset.root().string());
    };
    expect_error<ConfigError>(
        [&] {
          files_of_mixture({part_of(d, c), part_of(other, own)});
        },
        {"processor_config.json", name, says(told, "my_arm", d) + ", ",
         says(!told, "new_embodiment", other), "set model." + key + " "});
  };
  refused("use_percentiles", "use_percentiles", true,
          [](GrootConfig& c) { c.use_percentiles = false; });
  refused("clip_outliers", "clip_outliers", false, [](GrootConfig& c) { c.clip_outliers = true; });
  refused("use_relative_action", "relative_actions", true,
          [](GrootConfig& c) { c.relative_actions = false; });
  refused("apply_sincos_state_encoding", "sincos_state_groups", false,
          [](GrootConfig& c) { c.sincos_state_groups = {"grip"}; });
}

TEST(GrootSidecarsOfRuns, OneRobotInTwoDatasetsHasOneEntry) {
  const FakeDataset d = dataset();
  FakeDataset other = dataset();
  const GrootConfig c = from_checkpoint();
  // Each keeps its statistics, the file has those of the first.
  other.episode_list.pop_back();
  std::string log = logged([&] {
    const Files same = files_of_mixture({part_of(d, c), part_of(other, c)});
    EXPECT_EQ(text_of(same, "statistics.json"),
              text_of(files_of_mixture({part_of(d, c)}), "statistics.json"));
    EXPECT_NE(text_of(same, "modality.json"), "") << "the parts read the same groups";
  });
  EXPECT_THAT(log, HasSubstr("several datasets are of the embodiment 'my_arm'"));
  log = logged([&] {
    GrootConfig groups = c;
    groups.modality = (d.root_path / "meta" / "modality.json").string();
    // Without the file's switches, these are the recipe's.
    groups.use_percentiles = true;
    groups.clip_outliers = false;
    groups.sincos_state_groups = {"gripper"};
    GrootConfig plain = c;
    plain.relative_actions = false;
    const Files files = files_of_mixture({part_of(d, plain), part_of(d, groups)});
    const auto left = Json::parse(text_of(files, "processor_config.json"))["processor_kwargs"];
    EXPECT_FALSE(left["modality_configs"].contains("my_arm"));
    EXPECT_TRUE(left["modality_configs"].contains("other"));
  });
  EXPECT_THAT(log, HasSubstr("datasets of the embodiment 'my_arm' differ in their groups"));
}

TEST(GrootSidecarsOfRuns, BrokenFilesOfTheFirstCheckpointAreNamed) {
  const FakeDataset d = dataset();
  const GrootConfig c = from_checkpoint();
  const GrootTransform t(c, d, toy_tokens);
  const auto refused = [&](const std::string& text, const std::string& message) {
    write(*c.checkpoint, "statistics.json", text);
    expect_error<DataError>([&] { files_of(t, complete_stats(d, t)); },
                            {"groot_sidecars_base/statistics.json", message});
  };
  refused("{ broken", "");
  refused(R"({"gr1": [1]})", ": gr1 is no object of statistics");
  refused(R"({"gr1": {"state": 1}})", ": gr1.state is no object of groups");
  refused(R"({"gr1": {"state": {"arm": "x"}}})", ": gr1.state.arm is no object of statistics");
}

}  // namespace
}  // namespace longship::models
