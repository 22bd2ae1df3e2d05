// Datasets under other names, several as one, and rows that must not be trained on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/bad_samples.h"
#include "data/golden_arrays.h"
#include "data/mapped_dataset.h"
#include "data/mixture.h"
#include "data/split.h"
#include "support/expect_error.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

float value(int64_t episode, int64_t frame, int64_t dim) {
  return static_cast<float>(100 * episode + 10 * frame + dim);
}
float shifted(int64_t episode, int64_t frame, int64_t dim) {
  return value(episode, frame, dim) + 0.5F;
}
float with_faults(int64_t episode, int64_t frame, int64_t dim) {
  if (episode == 1 && frame == 3 && dim == 2) return std::numeric_limits<float>::quiet_NaN();
  if (episode == 2 && frame == 0 && dim == 0) return std::numeric_limits<float>::infinity();
  return value(episode, frame, dim);
}

std::shared_ptr<testing::FakeDataset> robot(const std::string& root, std::vector<int64_t> lengths,
                                            int64_t width) {
  auto dataset = std::make_shared<testing::FakeDataset>();
  dataset->root_path = root;
  dataset->task_list = {root + " task"};
  for (const int64_t length : lengths) dataset->add_episode(length);
  dataset->add_column("obs.joints", width, &value);
  dataset->add_column("actions.joint", width, &shifted);
  dataset->add_column("extra", 1, &value);
  dataset->add_camera("observation.images.top", 4, 6);
  dataset->add_camera("observation.images.wrist", 4, 6);
  FeatureStats stats;
  stats.min = std::vector<double>(static_cast<size_t>(width), -1);
  stats.max = std::vector<double>(static_cast<size_t>(width), 1);
  stats.source = root + " stats";
  dataset->stats_map["obs.joints"] = stats;
  return dataset;
}

DatasetMapping joint_names() {
  DatasetMapping mapping;
  mapping.keys = {{"observation.state", "obs.joints"}, {"action", "actions.joint"}};
  mapping.key = "data.datasets.0.";
  return mapping;
}

using longship::testing::message_of;

TEST(MappedDataset, RenamesColumnsAndTheirStatistics) {
  const auto mapped = map_dataset(robot("a", {3, 4}, 2), joint_names());
  EXPECT_NE(mapped->find_feature("action"), nullptr);
  EXPECT_EQ(mapped->find_feature("actions.joint"), nullptr);
  EXPECT_NE(mapped->find_feature("extra"), nullptr);
  EXPECT_EQ(mapped->stats().at("observation.state").source, "a stats");
  EXPECT_EQ(mapped->stats().count("obs.joints"), 0u);
  WindowSpec windows;
  windows.columns["action"] = {0, 1, 5};
  windows.columns["observation.state"] = {-1, 0};
  windows.cameras["observation.images.top"] = {0};
  const RawSample sample = mapped->get(4, windows);
  EXPECT_THAT(sample.columns.at("action").values,
              ElementsAre(110.5, 111.5, 120.5, 121.5, 130.5, 131.5));
  EXPECT_THAT(sample.columns.at("action").is_pad, ElementsAre(0, 0, 1));
  EXPECT_THAT(sample.columns.at("observation.state").values, ElementsAre(100, 101, 110, 111));
  EXPECT_EQ(sample.columns.size(), 2u);
  EXPECT_EQ(sample.cameras.at("observation.images.top").frames.size(), 1u);
  EXPECT_THAT(mapped->column_values("action", std::vector<int64_t>{0}),
              ElementsAre(0.5, 1.5, 10.5, 11.5, 20.5, 21.5));
  EXPECT_THROW(mapped->column_values("actions.joint"), DataError);
}

TEST(MappedDataset, OneFeatureMayHaveTwoNames) {
  DatasetMapping mapping;
  mapping.keys = {{"observation.state", "obs.joints"}, {"action", "obs.joints"}};
  const auto mapped = map_dataset(robot("a", {3}, 1), mapping);
  WindowSpec windows;
  windows.columns["action"] = {1, 2};
  windows.columns["observation.state"] = {0};
  const RawSample sample = mapped->get_columns(0, windows);
  EXPECT_THAT(sample.columns.at("action").values, ElementsAre(10, 20));
  EXPECT_THAT(sample.columns.at("observation.state").values, ElementsAre(0));
}

TEST(MappedDataset, ANameInUseIsHiddenBehindItsNewOwner) {
  DatasetMapping mapping;
  mapping.keys = {{"extra", "obs.joints"}};
  const auto mapped = map_dataset(robot("a", {3}, 2), mapping);
  EXPECT_EQ(mapped->find_feature("extra")->width(), 2);
  EXPECT_EQ(std::count_if(mapped->features().begin(), mapped->features().end(),
                          [](const Feature& f) { return f.name == "extra"; }),
            1);
}

TEST(MappedDataset, CamerasAppearUnderTheirSlots) {
  DatasetMapping mapping = joint_names();
  mapping.cameras = {{"base", "observation.images.wrist"}, {"left", ""}};
  mapping.embodiment = 7;
  const auto mapped = map_dataset(robot("a", {3}, 2), mapping);
  EXPECT_THAT(mapped->cameras(), ElementsAre("base"));
  WindowSpec windows;
  windows.cameras["base"] = {0};
  const RawSample sample = mapped->get(0, windows);
  EXPECT_EQ(sample.cameras.at("base").frames.size(), 1u);
  EXPECT_EQ(sample.embodiment, 7);
}

TEST(MappedDataset, FaultsNameKeyAndNames) {
  DatasetMapping mapping = joint_names();
  mapping.keys.emplace_back("x", "obs.joint");
  EXPECT_THAT(message_of<ConfigError>([&] { map_dataset(robot("a", {3}, 2), mapping); }),
              ::testing::AllOf(HasSubstr("data.datasets.0.keys"), HasSubstr("'obs.joint'"),
                               HasSubstr("obs.joints")));
  mapping = joint_names();
  mapping.cameras = {{"base", "observation.images.front"}};
  EXPECT_THAT(
      message_of<ConfigError>([&] { map_dataset(robot("a", {3}, 2), mapping); }),
      ::testing::AllOf(HasSubstr("data.datasets.0.cameras"), HasSubstr("observation.images.front"),
                       HasSubstr("observation.images.top, observation.images.wrist")));
  mapping.cameras = {{"base", ""}};
  EXPECT_THAT(message_of<ConfigError>([&] { map_dataset(robot("a", {3}, 2), mapping); }),
              HasSubstr("leaves every slot"));
  mapping = joint_names();
  FeatureStats of_another;
  of_another.q01 = std::vector<double>(14);
  of_another.source = "other.json";
  mapping.stats["action"] = of_another;
  EXPECT_THAT(
      message_of<DataError>([&] { map_dataset(robot("a", {3}, 2), mapping); }),
      ::testing::AllOf(HasSubstr("other.json"), HasSubstr("14 numbers"), HasSubstr("has 2")));
}

MixtureDataset two_robots() {
  std::vector<MixturePart> parts(2);
  parts[0].dataset = map_dataset(robot("a", {3, 4}, 2), joint_names());
  parts[0].name = "a";
  parts[0].action_dims = {5, 0};
  DatasetMapping mapping = joint_names();
  mapping.cameras = {{"observation.images.top", "observation.images.wrist"}};
  mapping.embodiment = 3;
  parts[1].dataset = map_dataset(robot("b", {2, 0, 5}, 3), mapping);
  parts[1].name = "b";
  return MixtureDataset(std::move(parts), "observation.state", "action");
}

TEST(Mixture, NumbersOneDatasetBehindTheOther) {
  const MixtureDataset mixture = two_robots();
  EXPECT_EQ(mixture.size(), 14);
  EXPECT_EQ(mixture.episodes().size(), 5u);
  EXPECT_EQ(mixture.episodes()[2].first_sample, 7);
  EXPECT_EQ(mixture.episodes()[2].index, 0);
  EXPECT_THAT(mixture.tasks(), ElementsAre("a task", "b task"));
  EXPECT_EQ(mixture.task_of(9), "b task");
  WindowSpec windows;
  windows.columns["action"] = {0, 1};
  windows.cameras["observation.images.top"] = {0};
  windows.cameras["observation.images.wrist"] = {0};
  const RawSample first = mixture.get(6, windows);
  EXPECT_EQ(first.dataset, 0);
  EXPECT_EQ(first.sample_id, 6);
  EXPECT_EQ(first.cameras.size(), 2u);
  EXPECT_THAT(first.columns.at("action").values, ElementsAre(130.5, 131.5, 130.5, 131.5));
  const RawSample second = mixture.get(9, windows);
  EXPECT_EQ(second.dataset, 1);
  EXPECT_EQ(second.embodiment, 3);
  EXPECT_EQ(second.sample_id, 9);
  EXPECT_EQ(second.episode, 2);
  EXPECT_EQ(second.frame, 0);
  EXPECT_EQ(second.columns.at("action").width, 3);
  EXPECT_EQ(second.cameras.size(), 1u);  // its wrist camera was not mapped
  EXPECT_THROW(mixture.get(14, windows), DataError);
}

TEST(Mixture, ABatchIsItsSamples) {
  const MixtureDataset mixture = two_robots();
  WindowSpec windows;
  windows.columns["action"] = {0, 1, -2};
  windows.columns["observation.state"] = {0};
  windows.cameras["observation.images.top"] = {0, 1};
  const std::vector<int64_t> ids = {9, 0, 13, 9, 6, 7};
  const std::vector<RawSample> batch = mixture.get_batch(ids, windows);
  ASSERT_EQ(batch.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const RawSample alone = mixture.get(ids[i], windows);
    EXPECT_EQ(batch[i].sample_id, ids[i]);
    EXPECT_EQ(batch[i].dataset, alone.dataset);
    EXPECT_EQ(batch[i].embodiment, alone.embodiment);
    EXPECT_EQ(batch[i].frame, alone.frame);
    EXPECT_EQ(batch[i].task, alone.task);
    EXPECT_EQ(batch[i].columns.at("action").values, alone.columns.at("action").values);
    EXPECT_EQ(batch[i].columns.at("action").is_pad, alone.columns.at("action").is_pad);
    EXPECT_EQ(batch[i].cameras.size(), alone.cameras.size());
  }
  EXPECT_THROW(mixture.get_batch(std::vector<int64_t>{0, 14}, windows), DataError);
}

TEST(Mixture, FeaturesAreAsWideAsTheWidestPartNeeds) {
  const MixtureDataset mixture = two_robots();
  EXPECT_EQ(mixture.find_feature("action")->width(), 6);  // place 5 is taken by part a
  EXPECT_EQ(mixture.find_feature("observation.state")->width(), 3);
  EXPECT_THAT(mixture.parts()[1].action_dims, ElementsAre(0, 1, 2));
  EXPECT_EQ(mixture.stats().count("a/observation.state"), 1u);
  EXPECT_EQ(mixture.column_values("extra", std::vector<int64_t>{0, 2}).size(), 5u);
  EXPECT_THROW(mixture.column_values("action", std::vector<int64_t>{0, 2}), DataError);
}

TEST(Mixture, RefusesDimensionsAndNamesThatDoNotFit) {
  const auto build = [](std::vector<int64_t> dims, const std::string& second_name) {
    std::vector<MixturePart> parts(2);
    for (MixturePart& part : parts) {
      part.dataset = map_dataset(robot("a", {3}, 2), joint_names());
    }
    parts[0].name = "a";
    parts[1].name = second_name;
    parts[1].state_dims = std::move(dims);
    MixtureDataset(std::move(parts), "observation.state", "action");
  };
  EXPECT_THAT(message_of<ConfigError>([&] { build({}, "a"); }),
              HasSubstr("two datasets have the name 'a'"));
  EXPECT_THAT(message_of<ConfigError>([&] { build({0}, "b"); }),
              ::testing::AllOf(HasSubstr("data.datasets.1.state_dims has 1"), HasSubstr("has 2")));
  EXPECT_THAT(message_of<ConfigError>([&] { build({1, 1}, "b"); }), HasSubstr("place 1 to two"));
  EXPECT_THAT(message_of<ConfigError>([&] { build({1, -1}, "b"); }), HasSubstr("-1 is no place"));
}

std::shared_ptr<testing::FakeDataset> faulty() {
  auto dataset = std::make_shared<testing::FakeDataset>();
  dataset->task_list = {"t"};
  for (const int64_t length : {12, 7, 9}) dataset->add_episode(length);
  dataset->add_column("action", 3, &with_faults);
  dataset->add_column("clean", 3, &value);
  return dataset;
}

TEST(BadSamples, AreFoundWithTheirPlace) {
  const auto dataset = faulty();
  const std::vector<BadFrame> bad = find_bad_frames(*dataset, {"action", "clean", "absent"});
  ASSERT_EQ(bad.size(), 2u);
  EXPECT_EQ(describe(*dataset, bad[0]), "episode 1, frame 3: action[2] is nan");
  EXPECT_EQ(describe(*dataset, bad[1]), "episode 2, frame 0: action[0] is inf");
}

// Against the definition: read every window and look.
TEST(BadSamples, ExactlyTheWindowsThatTouchOneAreDropped) {
  const auto dataset = faulty();
  const std::vector<BadFrame> bad = find_bad_frames(*dataset, {"action"});
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0}, {0, 1, 2, 3, 4}, {-2, 0}, {5, -30}, {100}, {-100}, {}}) {
    WindowSpec windows;
    windows.columns["action"] = offsets;
    std::vector<int64_t> expected;
    for (int64_t id = 0; id < dataset->size(); ++id) {
      const RawSample sample = dataset->get_columns(id, windows);
      const auto& values = sample.columns.at("action").values;
      if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
        expected.push_back(id);
      }
    }
    EXPECT_EQ(samples_touching(*dataset, bad, windows), expected);
  }
}

TEST(BadSamples, StatisticsLeaveThemOut) {
  const auto dataset = faulty();
  const std::vector<BadFrame> bad = find_bad_frames(*dataset, {"action", "clean"});
  const auto stats = clean_stats(*dataset, bad);
  EXPECT_EQ(stats.count("clean"), 0u);
  const FeatureStats& action = stats.at("action");
  EXPECT_EQ(action.count, 26);
  EXPECT_EQ(action.max[2], 282);
  EXPECT_EQ(action.min[0], 0);
  double mean = 0;
  for (int64_t id = 0; id < dataset->size(); ++id) {
    const auto [episode, frame] = dataset->locate(id);
    if (id != bad[0].sample_id && id != bad[1].sample_id) {
      mean += value(episode, frame, 1) / 26.0;
    }
  }
  EXPECT_NEAR(action.mean[1], mean, 1e-9);
}

TEST(EpisodeSubset, IsTheWholeSetFiltered) {
  const auto dataset = robot("a", {12, 7, 9}, 2);
  EXPECT_THAT(split_by_episode(*dataset, {}, {2, 0}).train_ids.ranges(),
              ElementsAre(IdRange{0, 12}, IdRange{19, 28}));
  EXPECT_EQ(split_by_episode(*dataset, {}, {0, 2}).train_ids,
            split_by_episode(*dataset, {}, {2, 0, 2}).train_ids);
  const Split split = split_by_episode(*dataset, {1, {}, false}, {0, 1});
  EXPECT_THAT(split.val_episodes, ElementsAre(1));
  EXPECT_THAT(split.train_episodes, ElementsAre(0));
  for (const int64_t none : {99, -1}) {
    EXPECT_THAT(message_of<ConfigError>([&] {
                  split_by_episode(*dataset, {}, {1, none});
                }),
                ::testing::AllOf(HasSubstr("data.episodes names episode " + std::to_string(none)),
                                 HasSubstr("0 .. 2")));
  }
  EXPECT_THAT(message_of<ConfigError>([&] {
                split_by_episode(*dataset, {0, {2}, true}, {0, 1});
              }),
              HasSubstr("leaves out"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                split_by_episode(*dataset, {1, {}, false}, {1});
              }),
              HasSubstr("nothing is left"));
}

}  // namespace
}  // namespace longship::data
