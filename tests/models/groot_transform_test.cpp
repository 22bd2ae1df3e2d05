#include "models/groot/transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "data/golden_arrays.h"
#include "data/stats.h"
#include "groot_toy_tokens.h"
#include "support/expect_error.h"

namespace longship::models {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::FakeDataset;
using ::testing::HasSubstr;
using testing::toy_tokens;

constexpr int64_t kHorizon = 3;

GrootConfig config(GrootVersion version = GrootVersion::kN16) {
  GrootConfig c(version);
  c.data.horizon = kHorizon;
  c.shortest_edge = 64;
  c.tune_top_llm_layers = 0;
  return c;
}

FakeDataset dataset() {
  FakeDataset d;
  d.add_column("action", 4, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(
        std::sin(0.3 * static_cast<double>(t + 2 * i) + static_cast<double>(e)));
  });
  d.add_column("observation.state", 5, [](int64_t e, int64_t t, int64_t i) {
    return static_cast<float>(
        std::cos(0.2 * static_cast<double>(t * (i + 1)) + static_cast<double>(e)));
  });
  d.add_camera("observation.images.front", 40, 60);
  d.add_episode(9);
  d.add_episode(7);
  d.task_list = {"Pick up, the bowl!", ""};
  return d;
}

std::string modality_file(const std::string& text) {
  const auto path = testing::scratch_dir("groot_transform") / "modality.json";
  std::ofstream(path) << text;
  return path.string();
}

const char* const kGroups = R"({
  "state": {"gripper": {"start": 4, "end": 5}, "arm": {"start": 0, "end": 2}},
  "action": {"gripper": {"start": 3, "end": 4},
             "arm": {"start": 0, "end": 2, "rep": "RELATIVE"}},
  "video": {"front": {}}})";

std::unique_ptr<GrootBatch> batch_of(const GrootTransform& transform, const FakeDataset& d,
                                     const std::vector<int64_t>& ids, bool training = false) {
  std::vector<std::unique_ptr<Transform::Item>> items;
  for (const int64_t id : ids) {
    data::RawSample sample = d.get(id, transform.windows());
    if (training) sample.draw = data::TrainDraw{5, 7};
    items.push_back(transform.prepare(sample));
  }
  auto batch = transform.collate(items);
  return std::unique_ptr<GrootBatch>(dynamic_cast<GrootBatch*>(batch.release()));
}

std::vector<float> numbers(const at::Tensor& tensor) {
  const at::Tensor t = tensor.contiguous();
  return {t.const_data_ptr<float>(), t.const_data_ptr<float>() + t.numel()};
}

TEST(GrootTransform, BatchOfWholeColumns) {
  const FakeDataset d = dataset();
  for (const GrootVersion version : {GrootVersion::kN16, GrootVersion::kN17}) {
    const GrootConfig c = config(version);
    const GrootSizes sizes = c.sizes();
    const GrootTransform t(c, d, toy_tokens);
    EXPECT_THAT(t.windows().columns.at("action"), ElementsAre(0, 1, 2));
    EXPECT_THAT(t.windows().columns.at("observation.state"), ElementsAre(0));
    EXPECT_THAT(t.windows().cameras.at("observation.images.front"), ElementsAre(0));
    const auto b = batch_of(t, d, {2, 12});
    EXPECT_THAT(b->sample_ids, ElementsAre(2, 12));
    EXPECT_THAT(b->pictures, ElementsAre(1, 1));
    ASSERT_EQ(b->grids.size(), 2U);
    const int64_t patches = b->grids[0][0] * b->grids[0][1] + b->grids[1][0] * b->grids[1][1];
    EXPECT_EQ(b->patches.sizes(), (std::vector<int64_t>{patches, sizes.patch_values()}));
    EXPECT_EQ(b->token_ids.size(0), b->lengths[0] + b->lengths[1]);
    const int64_t* ids = b->token_ids.const_data_ptr<int64_t>();
    EXPECT_EQ(std::count(ids, ids + b->lengths[0], sizes.text.image_token),
              b->grids[0][0] * b->grids[0][1] / 4);
    EXPECT_EQ(b->state.sizes(), (std::vector<int64_t>{2, 1, sizes.max_state_dim}));
    EXPECT_EQ(b->actions.sizes(), (std::vector<int64_t>{2, sizes.horizon, sizes.max_action_dim}));
    EXPECT_EQ(b->embodiment.const_data_ptr<int64_t>()[1], 10);
    EXPECT_TRUE(b->raw_state.empty());
    const std::vector<float> mask = numbers(b->action_mask), actions = numbers(b->actions);
    for (int64_t h = 0; h < sizes.horizon; ++h) {
      for (int64_t a = 0; a < sizes.max_action_dim; ++a) {
        const auto i = static_cast<size_t>(h * sizes.max_action_dim + a);
        EXPECT_EQ(mask[i], h < kHorizon && a < 4 ? 1.0F : 0.0F);
        EXPECT_TRUE(mask[i] == 1.0F || actions[i] == 0.0F);
      }
    }
    // Nothing was clipped: back to the recorded chunk.
    const at::Tensor raw = t.denormalise_actions(b->actions);
    ASSERT_EQ(raw.sizes(), (std::vector<int64_t>{2, kHorizon, 4}));
    const data::RawSample sample = d.get(2, t.windows());
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(raw.const_data_ptr<float>()[i], sample.columns.at("action").values[i], 1e-5);
    }
  }
}

TEST(GrootTransform, GroupsOfAModalityFile) {
  const FakeDataset d = dataset();
  GrootConfig c = config();
  c.modality = modality_file(kGroups);
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_THAT(t.views(), ElementsAre(std::pair{"front", "observation.images.front"}));
  EXPECT_EQ(t.action_width(), 3);
  const data::FeatureStats stats = data::completed_stats(d, "observation.state", {"min", "max"});
  const auto b = batch_of(t, d, {4});
  const std::vector<float> state = numbers(b->state);
  const data::RawSample sample = d.get(4, t.windows());
  const auto want = [&](size_t column) {
    const double v = sample.columns.at("observation.state").values[column];
    return 2 * (v - stats.min[column]) / (stats.max[column] - stats.min[column]) - 1;
  };
  EXPECT_NEAR(state[0], want(4), 1e-6);  // the file's order: the gripper comes first
  EXPECT_NEAR(state[1], want(0), 1e-6);
  EXPECT_NEAR(state[2], want(1), 1e-6);
  EXPECT_EQ(state[3], 0.0F);
  const at::Tensor raw = t.denormalise_actions(b->actions);
  EXPECT_NEAR(raw.const_data_ptr<float>()[3], sample.columns.at("action").values[3], 1e-6);
  EXPECT_EQ(raw.const_data_ptr<float>()[2], 0.0F) << "in no group";
}

TEST(GrootTransform, RelativeGroupsAndTheirStatistics) {
  const FakeDataset d = dataset();
  GrootConfig c = config();
  c.modality = modality_file(kGroups);
  c.relative_actions = true;
  const GrootTransform t(c, d, toy_tokens);
  const auto own = t.own_stats();
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own.begin()->first, "action[0:2] minus observation.state[0:2] by step horizon(3)");
  const data::FeatureStats& stats = own.begin()->second;
  EXPECT_EQ(stats.count, 7 + 5);  // chunks inside of their episodes
  ASSERT_EQ(stats.min.size(), 6U);
  // By hand, for the second step of dimension 1.
  double low = 1e9, high = -1e9, sum = 0, squares = 0;
  for (int64_t e = 0; e < 2; ++e) {
    const int64_t length = d.episode_list[static_cast<size_t>(e)].length;
    for (int64_t f = 0; f + kHorizon <= length; ++f) {
      const double v = static_cast<double>(d.columns.at("action").value(e, f + 1, 1)) -
                       d.columns.at("observation.state").value(e, f, 1);
      low = std::min(low, v);
      high = std::max(high, v);
      sum += v;
      squares += v * v;
    }
  }
  EXPECT_DOUBLE_EQ(stats.min[3], low);
  EXPECT_DOUBLE_EQ(stats.max[3], high);
  EXPECT_NEAR(stats.mean[3], sum / 12, 1e-12);
  EXPECT_NEAR(stats.std[3], std::sqrt(squares / 12 - sum / 12 * (sum / 12)), 1e-9);

  const auto b = batch_of(t, d, {1, 3, 10});
  ASSERT_EQ(b->raw_state.size(), 3U);
  EXPECT_EQ(b->raw_state[0].size(), 2U);
  const at::Tensor raw = t.denormalise_actions(b->actions, b.get());
  for (const size_t sample : {0U, 1U, 2U}) {
    const data::RawSample want = d.get(b->sample_ids[sample], t.windows());
    for (const size_t i : {0U, 1U, 3U, 4U, 9U, 11U}) {
      EXPECT_NEAR(raw.const_data_ptr<float>()[sample * 12 + i], want.columns.at("action").values[i],
                  2e-6);
    }
  }
  expect_error<InternalError>([&] { t.denormalise_actions(b->actions); }, {"states of the batch"});

  // A dataset that has them, as one opened with a checkpoint's statistics, is taken at its word.
  FakeDataset given = dataset();
  given.stats_map = own;
  given.stats_map.begin()->second.max.assign(6, 1000);
  EXPECT_EQ(GrootTransform(c, given, toy_tokens).own_stats().begin()->second.max[0], 1000);
}

TEST(GrootTransform, FilesOfTheDatasetAreFound) {
  FakeDataset d = dataset();
  d.root_path = testing::scratch_dir("groot_dataset");
  std::filesystem::create_directories(d.root_path / "meta");
  std::ofstream(d.root_path / "meta" / "modality.json") << kGroups;
  const auto stats = [&](const std::string& text) {
    std::ofstream(d.root_path / "meta" / "relative_stats_3.json") << text;
    GrootConfig c = config();
    c.relative_actions = true;
    return GrootTransform(c, d, toy_tokens).own_stats().begin()->second;
  };
  const auto read = stats(R"({"__fingerprints__": {"arm": 1},
                              "arm": {"min": [[-9, -9], [-8, -8], [-7, -7]],
                                      "max": [[9, 9], [8, 8], [7, 7]]}})");
  EXPECT_THAT(read.max, ElementsAre(9, 9, 8, 8, 7, 7));
  EXPECT_THAT(read.source, HasSubstr("relative_stats_3.json"));
  // Of another horizon: they are computed.
  EXPECT_EQ(stats(R"({"arm": {"min": [[-9, -9]], "max": [[9, 9]]}})").count, 12);
}

TEST(GrootTransform, StateIsLeftOutInTrainingOnly) {
  const FakeDataset d = dataset();
  GrootConfig c = config();
  c.state_input_dropout = 1;
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_THAT(numbers(batch_of(t, d, {4}, true)->state), Each(0.0F));
  EXPECT_THAT(numbers(batch_of(t, d, {4})->state), ::testing::Contains(::testing::Ne(0.0F)));
  c.state_input_dropout = 0.5;
  const GrootTransform half(c, d, toy_tokens);
  int64_t dropped = 0;
  for (int64_t id = 0; id < d.size(); ++id) {
    const auto first = numbers(batch_of(half, d, {id}, true)->state);
    EXPECT_EQ(first, numbers(batch_of(half, d, {id}, true)->state));
    dropped += std::all_of(first.begin(), first.end(), [](float v) { return v == 0; });
  }
  EXPECT_GT(dropped, 2);
  EXPECT_LT(dropped, d.size() - 2);
}

TEST(GrootTransform, PicturesAreChangedInTrainingOnlyAndRepeatably) {
  const FakeDataset d = dataset();
  const GrootTransform t(config(), d, toy_tokens);
  const auto eval = numbers(batch_of(t, d, {4})->patches);
  const auto train = numbers(batch_of(t, d, {4}, true)->patches);
  EXPECT_NE(eval, train);
  EXPECT_EQ(train, numbers(batch_of(t, d, {4}, true)->patches));
  EXPECT_NE(train, numbers(batch_of(t, d, {5}, true)->patches));
  for (const float v : train) ASSERT_LE(std::abs(v), 1.0F);
}

TEST(GrootTransform, PromptIsFormalizedAndNeverEmptyForN16) {
  const FakeDataset d = dataset();
  const GrootTransform n16(config(), d, toy_tokens);
  const GrootTransform n17(config(GrootVersion::kN17), d, toy_tokens);
  EXPECT_THAT(n16.prompt(d.get(0, n16.windows())), HasSubstr("user\npick up the bowl<image-1>"));
  EXPECT_THAT(n16.prompt(d.get(9, n16.windows())), HasSubstr("user\nperform the task<image-1>"));
  EXPECT_THAT(n17.prompt(d.get(9, n17.windows())), HasSubstr("<|vision_end|><|im_end|>"));
}

TEST(GrootTransform, ViewsAreNeverGuessed) {
  FakeDataset d = dataset();
  d.add_camera("observation.images.wrist", 40, 60);
  GrootConfig c = config();
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"data.cameras", "observation.images.front, observation.images.wrist"});
  c.data.cameras = {{"second", "observation.images.wrist"}, {"first", "observation.images.front"}};
  const GrootTransform t(c, d, toy_tokens);
  EXPECT_EQ(t.views()[0].second, "observation.images.wrist");
  EXPECT_THAT(batch_of(t, d, {0})->pictures, ElementsAre(2));
  c.data.cameras = {{"first", "observation.images.top"}};
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); }, {"observation.images.top"});
}

TEST(GrootTransform, ADatasetsNumberChoosesTheSlot) {
  const FakeDataset d = dataset();
  const GrootTransform t(config(), d, toy_tokens);
  data::RawSample sample = d.get(0, t.windows());
  sample.embodiment = 24;
  std::vector<std::unique_ptr<Transform::Item>> items;
  items.push_back(t.prepare(sample));
  const auto batch = t.collate(items);
  EXPECT_EQ(groot_batch(*batch).embodiment.const_data_ptr<int64_t>()[0], 24);
  sample.embodiment = 32;
  expect_error<ConfigError>([&] { t.prepare(sample); }, {"embodiment 32", "0 .. 31"});
}

TEST(GrootTransform, BrokenSamplesAreNamed) {
  FakeDataset d = dataset();
  const GrootTransform t(config(), d, toy_tokens);
  data::RawSample sample = d.get(12, t.windows());
  sample.columns.at("action").values[5] = std::numeric_limits<float>::quiet_NaN();
  expect_error<DataError>([&] { t.prepare(sample); },
                          {"episode 1 frame 3", "action.action[1] at row 1 is nan"});
  sample = d.get(12, t.windows());
  sample.cameras.clear();
  expect_error<DataError>([&] { t.prepare(sample); }, {"episode 1 frame 3", "no picture"});
  sample = d.get(12, t.windows());
  sample.columns.erase("observation.state");
  expect_error<DataError>([&] { t.prepare(sample); }, {"'observation.state' was not read"});
}

TEST(GrootTransform, WrongConfigurationsAreNamed) {
  const FakeDataset d = dataset();
  GrootConfig c = config();
  c.relative_actions = true;
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"model.relative_actions", "whole columns"});
  c = config();
  c.mean_std_groups = {"leg"};
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); },
                            {"model.mean_std_groups", "'leg'", "action groups: action"});
  c = config();
  c.max_action_dim = 3;
  expect_error<DataError>([&] { GrootTransform(c, d, toy_tokens); },
                          {"action groups have 4", "max_action_dim"});
  c = config();
  c.data.delta.runs = {2};
  expect_error<ConfigError>([&] { GrootTransform(c, d, toy_tokens); }, {"model.relative_actions"});
  c = config();
  c.token_limit = 60;
  const GrootTransform t(c, d, toy_tokens);
  expect_error<DataError>([&] { t.check_dataset(d); }, {"2 task text(s)", "limit is 60"});
  GrootTransform(config(), d, toy_tokens).check_dataset(d);
  c = config();
  expect_error<ConfigError>([&] { make_groot_transform(c, d); }, {"model.tokenizer"});
  c.modality = modality_file(R"({"state": {"a": {"start": 0, "end": 6}},
                                 "action": {"a": {"start": 0, "end": 4}}})");
  expect_error<DataError>([&] { GrootTransform(c, d, toy_tokens); },
                          {"modality.json", "state.a", "0 .. 6", "5 numbers"});
}

}  // namespace
}  // namespace longship::models
