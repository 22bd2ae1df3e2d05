#include "data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace longship::data {
namespace {

std::vector<int64_t> iota(int64_t n, int64_t from = 0) {
  std::vector<int64_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

class PermutationTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(PermutationTest, IsABijection) {
  const int64_t n = GetParam();
  for (const uint64_t epoch : {0, 1, 7}) {
    const IndexPermutation permutation(n, 42, epoch);
    std::vector<bool> seen(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      const int64_t image = permutation(i);
      ASSERT_TRUE(image >= 0 && image < n);
      ASSERT_FALSE(seen[static_cast<size_t>(image)]);
      seen[static_cast<size_t>(image)] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationTest,
                         ::testing::Values(1, 2, 3, 28, 255, 256, 257, 2652, 65536, 100003));

TEST(Permutation, EveryPlaceIsAboutEquallyLikely) {
  const int64_t n = 28, num_epochs = 28 * 200;
  std::vector<int64_t> count(static_cast<size_t>(n * n));
  for (int64_t epoch = 0; epoch < num_epochs; ++epoch) {
    const IndexPermutation permutation(n, 3, static_cast<uint64_t>(epoch));
    for (int64_t i = 0; i < n; ++i) ++count[static_cast<size_t>(i * n + permutation(i))];
  }
  double chi2 = 0;
  for (const int64_t c : count) {
    chi2 += (static_cast<double>(c) - 200) * (static_cast<double>(c) - 200) / 200;
  }
  // 27 * 27 = 729 degrees of freedom, standard deviation 38.
  EXPECT_NEAR(chi2, 729, 5 * 38);
}

TEST(ShuffledStream, EveryEpochVisitsEveryIdOnce) {
  // Ids need not be contiguous, and epochs end inside batches.
  std::vector<int64_t> ids = iota(28, 100);
  ids.back() = 5000;
  const ShuffledStream stream(ids, 42, 8);
  std::vector<int64_t> all;
  for (int64_t step = 0; step < 35; ++step) {
    const std::vector<int64_t> batch = stream.batch(step);
    ASSERT_EQ(batch.size(), 8u);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  std::sort(ids.begin(), ids.end());
  for (int64_t epoch = 0; epoch < 10; ++epoch) {
    std::vector<int64_t> part(all.begin() + epoch * 28, all.begin() + (epoch + 1) * 28);
    std::sort(part.begin(), part.end());
    EXPECT_EQ(part, ids) << "epoch " << epoch;
  }
}

TEST(ShuffledStream, IsAPureFunctionOfSeedIdsBatchAndStep) {
  const ShuffledStream a(iota(1000), 42, 32), b(iota(1000), 42, 32);
  const std::vector<int64_t> late = a.batch(70);
  for (int64_t step = 0; step < 70; ++step) EXPECT_EQ(a.batch(step), b.batch(step));
  EXPECT_EQ(b.batch(70), late);
}

TEST(ShuffledStream, AtAgreesWithBatch) {
  const ShuffledStream stream(iota(29), 7, 6);
  for (int64_t step = 0; step < 12; ++step) {
    for (int64_t k = 0; k < 6; ++k) {
      EXPECT_EQ(stream.batch(step)[static_cast<size_t>(k)], stream.at(step * 6 + k));
    }
  }
}

TEST(ShuffledStream, TheOrderOfSamplesDoesNotDependOnTheBatchSize) {
  const ShuffledStream small(iota(100), 1, 4), large(iota(100), 1, 20);
  std::vector<int64_t> joined;
  for (int64_t step = 0; step < 5; ++step) {
    const auto batch = small.batch(step);
    joined.insert(joined.end(), batch.begin(), batch.end());
  }
  EXPECT_EQ(joined, large.batch(0));
}

TEST(ShuffledStream, SeedsAndEpochsDiffer) {
  const ShuffledStream a(iota(500), 1, 500), b(iota(500), 2, 500);
  EXPECT_NE(a.batch(0), b.batch(0));
  EXPECT_NE(a.batch(0), a.batch(1));
  EXPECT_NE(a.batch(0), iota(500));
}

TEST(ShuffledStream, BatchLargerThanTheDataRepeats) {
  const ShuffledStream stream(iota(28), 1, 64);
  const std::vector<int64_t> batch = stream.batch(0);
  ASSERT_EQ(batch.size(), 64u);
  for (int64_t id = 0; id < 28; ++id) {
    EXPECT_GE(std::count(batch.begin(), batch.end(), id), 2);
    EXPECT_LE(std::count(batch.begin(), batch.end(), id), 3);
  }
  EXPECT_DOUBLE_EQ(stream.epochs_before(7), 16.0);
}

TEST(ShuffledStream, OneSampleIsRepeated) {
  const ShuffledStream stream({17}, 1, 3);
  EXPECT_EQ(stream.batch(5), (std::vector<int64_t>{17, 17, 17}));
}

// The numbers that a seed gives are part of what resume promises.
TEST(ShuffledStream, OrderOfASeedIsFrozen) {
  const ShuffledStream stream(iota(28), 42, 8);
  EXPECT_EQ(stream.batch(0), ShuffledStream(iota(28), 42, 8).batch(0));
  EXPECT_THAT(stream.batch(0), ::testing::ElementsAre(6, 20, 9, 8, 13, 0, 3, 26));
}

TEST(ShuffledStream, RefusesNothingToDo) {
  EXPECT_THROW(ShuffledStream({}, 1, 8), ConfigError);
  EXPECT_THROW(ShuffledStream({1}, 1, 0), ConfigError);
}

}  // namespace
}  // namespace longship::data
