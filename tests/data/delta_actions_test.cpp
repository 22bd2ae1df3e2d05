#include "data/delta_actions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "data/lerobot/dataset_stats.h"
#include "data/lerobot/lerobot_dataset.h"
#include "data/stats.h"
#include "data/table_dataset.h"
#include "support/expect_error.h"
#include "support/paths.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TableDataset;

using longship::testing::message_of;

TableDataset random_dataset(int64_t action_width = 3, int64_t state_width = 4) {
  return TableDataset({5, 1, 9}, {{"action", action_width}, {"observation.state", state_width}},
                      [](const std::string& name, int64_t i, int64_t d) {
                        std::vector<float> v(1);
                        fill_normal(make_key(3, RngStream::kTest, name.size(), uint64_t(i)), v,
                                    uint64_t(d));
                        return v[0];
                      });
}

TEST(DeltaActions, MaskFromRunsAndBack) {
  EXPECT_THAT(make_bool_mask(std::vector<int64_t>{2, -2, 2}), ElementsAre(1, 1, 0, 0, 1, 1));
  EXPECT_THAT(make_bool_mask(std::vector<int64_t>{2, 0, 2}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(make_bool_mask(std::vector<int64_t>{6, -1, 6, -1}),
              ElementsAre(1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0));
  EXPECT_TRUE(make_bool_mask({}).empty());
  EXPECT_THAT(mask_runs(std::vector<uint8_t>{1, 1, 0, 0, 1, 0}), ElementsAre(2, -2, 1));
  EXPECT_THAT(mask_runs(std::vector<uint8_t>{0, 1}), ElementsAre(-1, 1));
  EXPECT_TRUE(mask_runs(std::vector<uint8_t>{0, 0}).empty());
}

// Numbers on a grid of 1/1024 below 1024 have exact differences, so the way back gives the same
// bits; elsewhere the error is half a unit in the last place of the difference.
TEST(DeltaActions, RoundTripIsExactOnAGrid) {
  const std::vector<uint8_t> mask = {1, 0, 1, 1};
  std::vector<float> actions, state;
  for (int i = 0; i < 4; ++i) state.push_back(static_cast<float>(700 * i - 900) / 1024.0F);
  for (int i = 0; i < 5 * 40; ++i) {
    actions.push_back(static_cast<float>((i * 7919) % 4096 - 2048) / 1024.0F);
  }
  const std::vector<float> before = actions;
  apply_delta_actions(actions, 5, state, mask);
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool relative = i % 5 < 4 && mask[i % 5] != 0;
    EXPECT_EQ(actions[i], relative ? before[i] - state[i % 5] : before[i]) << i;
  }
  undo_delta_actions(actions, 5, state, mask);
  EXPECT_EQ(actions, before);
}

TEST(DeltaActions, RoundTripOfAnyNumbersIsCloseToTheRoundingOfTheDifference) {
  const std::vector<uint8_t> mask = {1, 1, 1};
  std::vector<float> actions(300), state(3);
  fill_normal(make_key(1, RngStream::kTest), actions);
  fill_normal(make_key(2, RngStream::kTest), state);
  const std::vector<float> before = actions;
  apply_delta_actions(actions, 3, state, mask);
  const std::vector<float> delta = actions;
  undo_delta_actions(actions, 3, state, mask);
  for (size_t i = 0; i < actions.size(); ++i) {
    const float largest = std::max(std::abs(delta[i]), std::abs(before[i]));
    EXPECT_NEAR(actions[i], before[i], largest * std::numeric_limits<float>::epsilon());
  }
}

TEST(DeltaActions, ChunksRepeatTheLastActionAndSubtractTheFirstState) {
  const TableDataset dataset = random_dataset();
  ChunkSpec spec;
  spec.horizon = 4;
  spec.mask = {1, 0, 1};
  const auto& action = dataset.values_.at("action");
  const auto& state = dataset.values_.at("observation.state");
  int64_t frame = 0;
  for_each_chunk(dataset, spec, 2, [&](std::span<const float> rows, std::span<const uint8_t> pad) {
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t from = 6 + std::min<int64_t>(frame + k, 8);
      EXPECT_EQ(pad[static_cast<size_t>(k)], frame + k > 8 ? 1 : 0);
      for (int64_t d = 0; d < 3; ++d) {
        float want = action[static_cast<size_t>(from * 3 + d)];
        if (d != 1) want -= state[static_cast<size_t>((6 + frame) * 4 + d)];
        EXPECT_EQ(rows[static_cast<size_t>(k * 3 + d)], want) << frame << " " << k << " " << d;
      }
    }
    ++frame;
  });
  EXPECT_EQ(frame, 9);
}

TEST(DeltaActions, ChunkStatsEqualStatsOfTheRows) {
  const TableDataset dataset = random_dataset();
  for (const std::vector<uint8_t>& mask :
       {std::vector<uint8_t>{}, std::vector<uint8_t>{1, 1}, std::vector<uint8_t>{0, 0, 1}}) {
    ChunkSpec spec;
    spec.horizon = 7;
    spec.mask = mask;
    std::vector<float> rows;
    for (int64_t e = 0; e < 3; ++e) {
      for_each_chunk(dataset, spec, e, [&](std::span<const float> r, std::span<const uint8_t>) {
        rows.insert(rows.end(), r.begin(), r.end());
      });
    }
    const FeatureStats want = exact_stats(rows, 3, "rows");
    const FeatureStats got = chunk_stats(dataset, spec);
    EXPECT_EQ(got.count, 15 * 7);
    EXPECT_EQ(got.min, want.min);
    EXPECT_EQ(got.max, want.max);
    EXPECT_EQ(got.mean, want.mean);
    for (size_t d = 0; d < 3; ++d) EXPECT_NEAR(got.std[d], want.std[d], 1e-14);
    EXPECT_EQ(got.q01, want.q01);
    EXPECT_EQ(got.q99, want.q99);
  }
}

// Values chosen so that order statistics lie in one bucket of the first pass, at its borders, and
// on both sides of zero.
TEST(DeltaActions, ChunkStatsFindOrderStatisticsByTheirBits) {
  const std::vector<float> hard = {-1.0F,  -1.0000001F, 1.0F,       1.0000001F, 1.0000002F,
                                   -0.0F,  0.0F,        1e-42F,     -1e-42F,    3e38F,
                                   -3e38F, 0.5F,        1.0078125F, 0.99999994F};
  for (int64_t n : {1, 2, 14, 700}) {
    const TableDataset dataset({n}, {{"action", 1}}, [&](const std::string&, int64_t i, int64_t) {
      return hard[static_cast<size_t>(i * 5) % hard.size()];
    });
    ChunkSpec spec;
    spec.horizon = 1;
    const FeatureStats want = exact_stats(dataset.values_.at("action"), 1, "rows");
    const FeatureStats got = chunk_stats(dataset, spec);
    EXPECT_EQ(got.q01, want.q01) << n;
    EXPECT_EQ(got.q99, want.q99) << n;
    EXPECT_NEAR(got.std[0], want.std[0], 1e-14 * want.std[0]) << n;
  }
}

TEST(DeltaActions, StoredChunkStatsAreUsedOnlyForTheirOwnMaskAndHorizon) {
  TableDataset dataset = random_dataset();
  ChunkSpec spec;
  spec.horizon = 2;
  spec.mask = {1, 1};
  EXPECT_EQ(chunk_stats_key(spec), "action relative(2) horizon(2)");
  FeatureStats stored;
  stored.min = stored.max = stored.mean = stored.std = stored.q01 = stored.q99 = {7, 8, 9};
  dataset.stats_["action"] = stored;  // of absolute actions: never taken
  EXPECT_NE(completed_chunk_stats(dataset, spec).min, stored.min);
  dataset.stats_[chunk_stats_key(spec)] = stored;
  EXPECT_EQ(completed_chunk_stats(dataset, spec).min, stored.min);
  spec.mask = {1, 1, 0};  // the same meaning
  EXPECT_EQ(completed_chunk_stats(dataset, spec).min, stored.min);
  spec.horizon = 3;
  EXPECT_NE(completed_chunk_stats(dataset, spec).min, stored.min);
  spec.horizon = 2;
  dataset.stats_[chunk_stats_key(spec)].q99 = {1};
  EXPECT_THAT(message_of<DataError>([&] { completed_chunk_stats(dataset, spec); }),
              HasSubstr("have 1 numbers, the feature 'action' has 3"));
}

TEST(DeltaActions, ChoiceByRunsAndByName) {
  TableDataset dataset = random_dataset();
  const auto resolve = [&](DeltaChoice choice) {
    return resolve_delta_mask(choice, dataset, "action", "observation.state");
  };
  EXPECT_TRUE(resolve({}).empty());
  EXPECT_THAT(resolve({{2, -1}, {}}), ElementsAre(1, 1));
  EXPECT_THAT(message_of<ConfigError>([&] {
                resolve({{2, -2}, {}});
              }),
              HasSubstr("[2, -2] names 4 dimensions, 'action' of table has 3"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                resolve({{-3}, {}});
              }),
              HasSubstr("no dimension is relative"));
  EXPECT_THAT(message_of<ConfigError>([&] {
                resolve({{1}, {"x"}});
              }),
              HasSubstr("give one of them"));
  EXPECT_THAT(message_of<DataError>([&] {
                resolve({{}, {"gripper"}});
              }),
              HasSubstr("lists 0 names for 3 dimensions"));
  dataset.features_[0].dim_names = {"shoulder", "Left_Gripper.pos", "elbow"};
  EXPECT_THAT(resolve({{}, {"gripper"}}), ElementsAre(1, 0, 1));
  EXPECT_THAT(message_of<ConfigError>([&] {
                resolve({{}, {"gripper", "wrist"}});
              }),
              HasSubstr("'wrist' is part of no dimension name"));
  const TableDataset narrow = random_dataset(3, 2);
  EXPECT_THAT(message_of<DataError>([&] {
                resolve_delta_mask({{3}, {}}, narrow, "action", "observation.state");
              }),
              HasSubstr("dimension 2 of 'action' cannot be relative"));
  EXPECT_THAT(message_of<DataError>([&] {
                resolve_delta_mask({{1}, {}}, narrow, "action", "nothing");
              }),
              HasSubstr("need the state feature 'nothing'"));
}

TEST(DeltaActions, ChunksNameTheBadNumber) {
  TableDataset dataset = random_dataset();
  dataset.values_["observation.state"][(6 + 3) * 4 + 2] = std::nanf("");
  ChunkSpec spec;
  spec.mask = {1};
  EXPECT_THAT(message_of<DataError>([&] { chunk_stats(dataset, spec); }),
              HasSubstr("episode 12 frame 3: observation.state[2] is nan"));
}

// What `longship dataset stats --horizon 16 --delta-mask 1,-1` prints is what training normalises
// with.
TEST(DeltaActions, ChunkStatsAreThoseOfTheCommand) {
  const auto root = longship::testing::dataset_path("pusht_v30");
  lerobot::StatsRequest request;
  request.columns = {"action"};
  request.horizon = 16;
  request.delta_mask = lerobot::parse_delta_mask("1,-1");
  const lerobot::StatsResult command = lerobot::dataset_stats(root, request);
  ASSERT_EQ(command.features.size(), 1u);
  ASSERT_TRUE(command.exact);
  const FullStats& want = command.features[0].stats;
  ChunkSpec spec;
  spec.horizon = 16;
  spec.mask = {1};
  const FeatureStats got = chunk_stats(*open_lerobot(root), spec);
  EXPECT_EQ(got.count, want.count);
  EXPECT_EQ(got.min, want.min);
  EXPECT_EQ(got.max, want.max);
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(got.mean[d], want.mean[d], 1e-9);
    EXPECT_NEAR(got.std[d], want.std[d], 1e-9);
    EXPECT_NEAR(got.q01[d], want.quantiles[0][d], 1e-9);
    EXPECT_NEAR(got.q99[d], want.quantiles[4][d], 1e-9);
  }
}

}  // namespace
}  // namespace longship::data
