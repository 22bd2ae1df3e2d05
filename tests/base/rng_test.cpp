#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

namespace longship {
namespace {

using Words = std::array<uint32_t, 4>;

// Vectors of Random123's kat_vectors file for philox4x32 with ten rounds.
TEST(Philox, KnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, PiecesEqualTheWhole) {
  const RngKey key = make_key(42, RngStream::kNoise, 7, 123456789012345);
  std::vector<float> whole(1001);
  fill_normal(key, std::span<float>(whole));
  for (const size_t cut : {size_t{1}, size_t{2}, size_t{500}, size_t{999}}) {
    std::vector<float> pieces(whole.size());
    fill_normal(key, std::span<float>(pieces).subspan(0, cut), 0);
    fill_normal(key, std::span<float>(pieces).subspan(cut), cut);
    EXPECT_EQ(pieces, whole) << cut;
  }
}

TEST(Rng, EveryPartOfTheKeyMatters) {
  std::set<double> seen;
  for (const RngKey& key :
       {RngKey{0, 0, 0, 0}, RngKey{1, 0, 0, 0}, RngKey{0, 1, 0, 0}, RngKey{0, 0, 1, 0},
        RngKey{0, 0, 0, 1}, RngKey{uint64_t{1} << 32, 0, 0, 0},
        RngKey{0, 0, 0, uint64_t{1} << 32}}) {
    double value = 0;
    fill_uniform(key, {&value, 1});
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7u);
}

// The numbers are part of what a seed means for a run, so they are frozen.
TEST(Rng, FirstNumbersAreFrozen) {
  double u = 0;
  float n = 0;
  fill_uniform(make_key(42, RngStream::kTime, 1, 2), {&u, 1});
  fill_normal(make_key(42, RngStream::kNoise, 1, 2), std::span<float>(&n, 1));
  EXPECT_DOUBLE_EQ(u, 0.14418576111199022);
  EXPECT_FLOAT_EQ(n, 0.30829063f);
}

TEST(Rng, UniformIsUniform) {
  std::vector<double> values(200000);
  fill_uniform(make_key(1, RngStream::kTest), values);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GT(*low, 0.0);
  EXPECT_LT(*high, 1.0);
  std::array<int, 20> counts{};
  for (const double v : values) ++counts[static_cast<size_t>(v * 20)];
  double chi2 = 0;
  for (const int c : counts) chi2 += (c - 10000.0) * (c - 10000.0) / 10000.0;
  EXPECT_LT(chi2, 43.8);  // 99.9 % quantile for 19 degrees of freedom
}

TEST(Rng, NormalHasItsMomentsAndTails) {
  std::vector<double> values(400000);
  fill_normal(make_key(2, RngStream::kTest), std::span<double>(values));
  const auto n = static_cast<double>(values.size());
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0;
  int64_t beyond = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double v = values[i];
    m1 += v / n;
    m2 += v * v / n;
    m3 += v * v * v / n;
    m4 += v * v * v * v / n;
    if (i > 0) lag += v * values[i - 1] / n;
    if (std::abs(v) > 1.959964) ++beyond;
  }
  EXPECT_NEAR(m1, 0, 0.007);
  EXPECT_NEAR(m2, 1, 0.01);
  EXPECT_NEAR(m3, 0, 0.025);
  EXPECT_NEAR(m4, 3, 0.07);
  EXPECT_NEAR(lag, 0, 0.007);
  EXPECT_NEAR(static_cast<double>(beyond) / n, 0.05, 0.0015);
}

TEST(Shuffle, IsAPermutationAndFair) {
  std::array<std::array<int, 4>, 4> where{};
  for (uint64_t epoch = 0; epoch < 8000; ++epoch) {
    std::vector<int64_t> ids = {0, 1, 2, 3};
    shuffle(make_key(9, RngStream::kShuffle, epoch), ids);
    for (size_t i = 0; i < 4; ++i) ++where[i][static_cast<size_t>(ids[i])];
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 2, 3}));
  }
  for (const auto& row : where) {
    for (const int count : row) EXPECT_NEAR(count, 2000, 200);
  }
}

TEST(HashName, IsFnv1a) {
  EXPECT_EQ(hash_name(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(hash_name("a"), 0xaf63dc4c8601ec8cULL);
}

}  // namespace
}  // namespace longship
