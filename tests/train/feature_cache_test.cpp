// Features kept by sample.
#include "train/feature_cache.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace longship::train {
namespace {

using Ids = std::vector<int64_t>;

// Rows of width 4 whose values tell the sample and the row.
at::Tensor rows_of(int64_t sample, int64_t rows) {
  return at::arange(1000 * sample, 1000 * sample + 4 * rows, at::kFloat).view({rows, 4});
}
at::Tensor padding(int64_t rows) {
  return at::full({rows, 4}, -1.0, at::kFloat);
}

TEST(FeatureCache, GivesBackInAnyOrderWithPadding) {
  FeatureCache cache(1 << 20);
  EXPECT_FALSE(cache.has(Ids{3}, Ids{2}, 0));
  cache.put(Ids{3, 5}, Ids{2, 4}, at::cat({rows_of(3, 2), rows_of(5, 4), padding(3)}));
  cache.put(Ids{8}, Ids{1}, rows_of(8, 1));
  EXPECT_EQ(cache.num_samples(), 3);
  EXPECT_EQ(cache.num_bytes(), 7 * 4 * 4);
  ASSERT_TRUE(cache.has(Ids{8, 3, 5}, Ids{1, 2, 4}, 2));
  const at::Tensor got = cache.gather(Ids{8, 3, 5}, Ids{1, 2, 4}, 2, false);
  EXPECT_TRUE(at::equal(got, at::cat({rows_of(8, 1), rows_of(3, 2), rows_of(5, 4), padding(2)})));
  EXPECT_FALSE(cache.has(Ids{8, 4}, Ids{1, 2}, 0)) << "an unknown sample";
  EXPECT_FALSE(cache.has(Ids{3}, Ids{3}, 0)) << "another number of rows";
}

TEST(FeatureCache, PaddingThatWasNeverSeenIsAMiss) {
  FeatureCache cache(1 << 20);
  cache.put(Ids{1}, Ids{2}, rows_of(1, 2));
  EXPECT_TRUE(cache.has(Ids{1}, Ids{2}, 0));
  EXPECT_FALSE(cache.has(Ids{1}, Ids{2}, 1));
}

TEST(FeatureCache, StopsAtItsLimitAndKeepsWhatItHas) {
  FeatureCache cache(5 * 4 * 4);
  cache.put(Ids{1, 2}, Ids{2, 2}, at::cat({rows_of(1, 2), rows_of(2, 2)}));
  EXPECT_FALSE(cache.full());
  cache.put(Ids{3}, Ids{2}, rows_of(3, 2));
  EXPECT_TRUE(cache.full());
  EXPECT_TRUE(cache.has(Ids{1, 2}, Ids{2, 2}, 0));
  EXPECT_FALSE(cache.has(Ids{3}, Ids{2}, 0));
  EXPECT_LE(cache.num_bytes(), 5 * 4 * 4);
  cache.clear();
  EXPECT_EQ(cache.num_samples(), 0);
  EXPECT_FALSE(cache.has(Ids{1}, Ids{2}, 0));
}

TEST(FeatureCache, FewerRowsThanSamplesHaveIsAnError) {
  FeatureCache cache(1 << 20);
  EXPECT_THROW(cache.put(Ids{1}, Ids{3}, rows_of(1, 2)), ShapeError);
}

}  // namespace
}  // namespace longship::train
