#include "data/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/golden_arrays.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

testing::FakeDataset four_episodes() {
  testing::FakeDataset dataset;
  dataset.task_list = {"push"};
  for (const int64_t length : {3, 2, 0, 4}) dataset.add_episode(length);
  return dataset;
}

config::CountOrList count(int64_t n) {
  return {n, {}, false};
}
config::CountOrList list(std::vector<int64_t> episodes) {
  return {0, std::move(episodes), true};
}

std::string error_of(const Dataset& dataset, const config::CountOrList& val) {
  try {
    split_by_episode(dataset, val);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Split, CountTakesTheLastEpisodesWithSamples) {
  const auto dataset = four_episodes();
  const Split split = split_by_episode(dataset, count(2));
  EXPECT_THAT(split.val_episodes, ElementsAre(1, 3));
  EXPECT_THAT(split.train_episodes, ElementsAre(0, 2));
  EXPECT_THAT(split.train_ids, ElementsAre(0, 1, 2));
  EXPECT_THAT(split.val_ids, ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST(Split, ZeroMeansNoValidation) {
  const auto dataset = four_episodes();
  const Split split = split_by_episode(dataset, count(0));
  EXPECT_TRUE(split.val_ids.empty());
  EXPECT_EQ(split.train_ids.size(), 9u);
}

TEST(Split, ListIsTakenInAnyOrderAndOnce) {
  const auto dataset = four_episodes();
  const Split split = split_by_episode(dataset, list({3, 0, 3}));
  EXPECT_THAT(split.val_episodes, ElementsAre(0, 3));
  EXPECT_THAT(split.train_ids, ElementsAre(3, 4));
}

TEST(Split, UnknownEpisodesAreRefused) {
  const auto dataset = four_episodes();
  EXPECT_THAT(error_of(dataset, list({99})), HasSubstr("episode 99"));
  EXPECT_THAT(error_of(dataset, list({-1})), HasSubstr("episode -1"));
  EXPECT_THAT(error_of(dataset, count(-1)), HasSubstr("-1"));
  EXPECT_THAT(error_of(dataset, count(4)), HasSubstr("only 3 episodes"));
}

TEST(Split, SomethingMustBeLeftToTrain) {
  const auto dataset = four_episodes();
  EXPECT_THAT(error_of(dataset, count(3)), HasSubstr("nothing is left to train on"));
}

TEST(Locate, PassesOverEmptyEpisodes) {
  const auto dataset = four_episodes();
  EXPECT_EQ(dataset.locate(0), (std::pair<int64_t, int64_t>{0, 0}));
  EXPECT_EQ(dataset.locate(4), (std::pair<int64_t, int64_t>{1, 1}));
  EXPECT_EQ(dataset.locate(5), (std::pair<int64_t, int64_t>{3, 0}));
  EXPECT_EQ(dataset.locate(8), (std::pair<int64_t, int64_t>{3, 3}));
  EXPECT_THROW(dataset.locate(9), DataError);
  EXPECT_THROW(dataset.locate(-1), DataError);
}

TEST(ColumnValues, DefaultGoesThroughTheFrames) {
  testing::FakeDataset dataset = four_episodes();
  dataset.add_column("x", 2, [](int64_t episode, int64_t frame, int64_t dim) {
    return static_cast<float>(100 * episode + 10 * frame + dim);
  });
  const Dataset& base = dataset;
  EXPECT_THAT(base.column_values("x", std::vector<int64_t>{2, 1}), ElementsAre(100, 101, 110, 111));
  EXPECT_EQ(base.column_values("x").size(), 18u);
  EXPECT_THROW(base.column_values("x", std::vector<int64_t>{4}), DataError);
}

}  // namespace
}  // namespace longship::data
