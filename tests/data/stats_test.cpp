#include "data/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "data/golden_arrays.h"

namespace longship::data {
namespace {

using testing::array;
using testing::FakeDataset;
using ::testing::HasSubstr;

TEST(RunningStats, MatchesOpenpi) {
  const auto in = testing::golden_tensors("pi05/preprocess/inputs.safetensors");
  const auto want = testing::golden_tensors("pi05/preprocess/expected.safetensors");
  const auto batches = array<float>(in, "stats.batches");
  RunningStats stats(8);
  for (size_t b = 0; b < 3; ++b) stats.update({&batches[b * 400 * 8], 400 * 8});
  const FeatureStats s = stats.result();
  EXPECT_EQ(s.count, 1200);
  const auto near = [&](const std::vector<double>& got, const std::string& key, double tolerance) {
    const auto ref = array<double>(want, "stats.openpi." + key);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(got[i], ref[i], tolerance * std::max(1.0, std::abs(ref[i])))
          << key << "[" << i << "]";
    }
  };
  near(s.q01, "q01", 1e-6);
  near(s.q99, "q99", 1e-6);
  near(s.mean, "mean", 1e-5);
  near(s.std, "std", 1e-5);
}

TEST(RunningStats, NeedsTwoRowsAndWholeRows) {
  RunningStats stats(2);
  EXPECT_THROW(stats.update(std::vector<float>{1, 2, 3}), ShapeError);
  stats.update(std::vector<float>{1, 2});
  EXPECT_THROW(stats.result(), ShapeError);
  stats.update(std::vector<float>{1, 4});
  EXPECT_EQ(stats.result().mean, (std::vector<double>{1, 3}));
}

TEST(RunningStats, ConstantColumnStaysConstant) {
  RunningStats stats(1);
  for (int i = 0; i < 3; ++i) stats.update(std::vector<float>(10, 5.0F));
  EXPECT_NEAR(stats.result().q01[0], 5, 1e-9);
  EXPECT_NEAR(stats.result().q99[0], 5, 1e-9);
  EXPECT_EQ(stats.result().std[0], 0);
}

TEST(ExactStats, LinearQuantilesAsNumpy) {
  const std::vector<float> v = {1, 2, 3, 10};
  EXPECT_DOUBLE_EQ(sorted_quantile(v, 0.0), 1);
  EXPECT_DOUBLE_EQ(sorted_quantile(v, 1.0), 10);
  EXPECT_DOUBLE_EQ(sorted_quantile(v, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(sorted_quantile(v, 0.99), 3 + 7 * 0.97);
  EXPECT_DOUBLE_EQ(sorted_quantile(std::vector<float>{4}, 0.3), 4);
}

TEST(ExactStats, PopulationStdPerDimension) {
  const FeatureStats s = exact_stats(std::vector<float>{1, 10, 3, 10, 5, 10}, 2, "here");
  EXPECT_EQ(s.count, 3);
  EXPECT_EQ(s.mean, (std::vector<double>{3, 10}));
  EXPECT_DOUBLE_EQ(s.std[0], std::sqrt(8.0 / 3.0));
  EXPECT_EQ(s.std[1], 0);
  EXPECT_EQ(s.min, (std::vector<double>{1, 10}));
  EXPECT_EQ(s.max, (std::vector<double>{5, 10}));
  EXPECT_DOUBLE_EQ(s.q01[0], 1.04);
}

TEST(ExactStats, NanIsRefusedWithItsPlace) {
  try {
    exact_stats(std::vector<float>{1, 2, 3, NAN}, 2, "set 'action'");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_THAT(e.what(), HasSubstr("set 'action': row 1 dimension 1 is nan"));
  }
}

FakeDataset small_dataset() {
  FakeDataset d;
  d.add_column("action", 2,
               [](int64_t e, int64_t t, int64_t i) { return static_cast<float>(10 * e + t + i); });
  d.add_episode(3);
  d.add_episode(2);
  d.task_list = {"go"};
  return d;
}

TEST(CompletedStats, ComputedFromEveryRowWhenAbsent) {
  const FakeDataset d = small_dataset();
  const FeatureStats s = completed_stats(d, "action", {"q01", "q99"});
  EXPECT_EQ(s.count, 5);
  EXPECT_DOUBLE_EQ(s.mean[0], (0 + 1 + 2 + 10 + 11) / 5.0);
  EXPECT_DOUBLE_EQ(s.q99[1], 11 + 0.96 * 1);
  EXPECT_THAT(s.source, HasSubstr("computed from rows"));
}

TEST(CompletedStats, MinimumAndMaximumNeverStandInForQuantiles) {
  FakeDataset d = small_dataset();
  FeatureStats stored;
  stored.min = {-100, -100};
  stored.max = {100, 100};
  stored.mean = {7, 7};
  stored.source = "meta/stats.json";
  d.stats_map["action"] = stored;
  const FeatureStats s = completed_stats(d, "action", {"q01", "q99"});
  EXPECT_EQ(s.min[0], -100);
  EXPECT_EQ(s.mean[0], 7);
  EXPECT_DOUBLE_EQ(s.q01[0], 0.04);
  EXPECT_EQ(s.source, "meta/stats.json and rows");
}

TEST(CompletedStats, StatisticsOfAnotherRobot) {
  FakeDataset d = small_dataset();
  d.stats_map["action"].q01.assign(14, 0);
  d.stats_map["action"].q99.assign(14, 1);
  try {
    completed_stats(d, "action", {"q01", "q99"});
    FAIL();
  } catch (const DataError& e) {
    EXPECT_THAT(e.what(), HasSubstr("'action' has 14 numbers, the feature has 2"));
  }
  EXPECT_THROW(compute_stats(d, "nothing"), DataError);
}

}  // namespace
}  // namespace longship::data
