#include "data/normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "data/delta_actions.h"
#include "data/golden_arrays.h"

namespace longship::data {
namespace {

using testing::array;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GoldenNorm : public ::testing::Test {
 protected:
  io::SafetensorsFile in_ = testing::golden_tensors("pi05/preprocess/inputs.safetensors");
  io::SafetensorsFile want_ = testing::golden_tensors("pi05/preprocess/expected.safetensors");
  FeatureStats stats_ = [this] {
    FeatureStats s;
    const auto get = [this](const std::string& name) {
      const auto v = array<float>(in_, "norm.stats." + name);
      return std::vector<double>(v.begin(), v.end());
    };
    s.min = get("min");
    s.max = get("max");
    s.mean = get("mean");
    s.std = get("std");
    s.q01 = get("q01");
    s.q99 = get("q99");
    return s;
  }();

  /// Rows of `input` cut to `width` numbers, through one direction, against the golden array.
  void expect(const Normalizer& normalizer, const std::string& input, const std::string& key,
              bool inverse, double tolerance) {
    const auto x = array<float>(in_, input);
    const auto want = array<float>(want_, key);
    const auto in_width = static_cast<size_t>(in_.at(input).shape[1]);
    const auto width = static_cast<size_t>(want_.at(key).shape[1]);
    std::vector<float> row(width);
    for (size_t r = 0; r < want.size() / width; ++r) {
      const std::span<const float> source(&x[r * in_width], width);
      inverse ? normalizer.denormalise(source, row) : normalizer.normalise(source, row);
      for (size_t i = 0; i < width; ++i) {
        const double ref = static_cast<double>(want[r * width + i]);
        ASSERT_NEAR(static_cast<double>(row[i]), ref, tolerance * std::max(1.0, std::abs(ref)))
            << key << " row " << r << " dim " << i;
      }
    }
  }
  void expect_both(NormFlavour flavour, NormMode mode, const std::string& key) {
    const Normalizer normalizer("x", mode, flavour, 8, stats_);
    expect(normalizer, "norm.x", key, false, 1e-4);
    expect(normalizer, "norm.y", key + ".inverse", true, 5e-6);
  }
};

TEST_F(GoldenNorm, Openpi) {
  expect_both(NormFlavour::kOpenpi, NormMode::kQuantiles, "norm.openpi.quantile");
  expect_both(NormFlavour::kOpenpi, NormMode::kMeanStd, "norm.openpi.zscore");
}

TEST_F(GoldenNorm, OpenpiNarrowAndWideRows) {
  const Normalizer quantiles("x", NormMode::kQuantiles, NormFlavour::kOpenpi, 8, stats_);
  expect(quantiles, "norm.x", "norm.openpi.quantile.first5", false, 1e-4);
  expect(quantiles, "norm.y_wide", "norm.openpi.quantile.inverse_wide", true, 5e-6);
  const Normalizer zscore("x", NormMode::kMeanStd, NormFlavour::kOpenpi, 8, stats_);
  expect(zscore, "norm.y_wide", "norm.openpi.zscore.inverse_wide", true, 5e-6);
}

TEST_F(GoldenNorm, Lerobot) {
  expect_both(NormFlavour::kLerobot, NormMode::kQuantiles, "norm.lerobot.quantiles");
  expect_both(NormFlavour::kLerobot, NormMode::kMeanStd, "norm.lerobot.mean_std");
  expect_both(NormFlavour::kLerobot, NormMode::kMinMax, "norm.lerobot.min_max");
}

TEST_F(GoldenNorm, Loongforge) {
  expect_both(NormFlavour::kLoongforge, NormMode::kQuantiles, "norm.loongforge.quantile");
  expect_both(NormFlavour::kLoongforge, NormMode::kMeanStd, "norm.loongforge.mean_std");
  expect_both(NormFlavour::kLoongforge, NormMode::kMinMax, "norm.loongforge.min_max");
  expect_both(NormFlavour::kLoongforge, NormMode::kScale, "norm.loongforge.scale");
}

TEST_F(GoldenNorm, LongshipEqualsLerobotOnOrdinaryColumnsAndFlattensTheDegenerateOne) {
  const Normalizer ours("state", NormMode::kQuantiles, NormFlavour::kLongship, 8, stats_);
  const Normalizer lerobot("state", NormMode::kQuantiles, NormFlavour::kLerobot, 8, stats_);
  EXPECT_THAT(ours.degenerate(), ElementsAre(7));
  const auto x = array<float>(in_, "norm.x");
  std::vector<float> a(8), b(8), back(8);
  for (size_t r = 0; r < 10; ++r) {
    const std::span<const float> row(&x[r * 8], 8);
    ours.normalise(row, a);
    lerobot.normalise(row, b);
    for (size_t i = 0; i < 7; ++i) EXPECT_EQ(a[i], b[i]);
    EXPECT_EQ(a[7], 0.0F);
    ours.denormalise(a, back);
    for (size_t i = 0; i < 7; ++i)
      EXPECT_NEAR(back[i], row[i], 1e-5 * std::max(1.0F, std::abs(row[i])));
    EXPECT_EQ(back[7], static_cast<float>(stats_.q01[7]));
  }
}

TEST_F(GoldenNorm, ActionsOfLoongforgeAndOpenpi) {
  const auto raw = array<float>(in_, "action.raw");
  FeatureStats s;
  s.q01.assign(stats_.q01.begin(), stats_.q01.begin() + 7);
  s.q99.assign(stats_.q99.begin(), stats_.q99.begin() + 7);
  const Normalizer loongforge("action", NormMode::kQuantiles, NormFlavour::kLoongforge, 7, s);
  const Normalizer openpi("action", NormMode::kQuantiles, NormFlavour::kOpenpi, 7, s);
  const auto padded = array<float>(want_, "action.openpi.padded");
  const auto zero = array<float>(want_, "action.loongforge.h10.zero");
  std::vector<float> row(7);
  for (size_t t = 0; t < 7; ++t) {
    openpi.normalise({&raw[t * 7], 7}, row);
    for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(row[i], padded[t * 32 + i], 1e-5);
    loongforge.normalise({&raw[t * 7], 7}, row);
    for (size_t i = 0; i < 7; ++i) EXPECT_NEAR(row[i], zero[t * 32 + i], 1e-5);
    for (size_t i = 7; i < 32; ++i) EXPECT_EQ(padded[t * 32 + i], 0.0F);
  }
}

TEST_F(GoldenNorm, DeltaActionsAndBack) {
  const auto facts = testing::golden_json("pi05/preprocess/expected.json");
  const auto raw = array<float>(in_, "action.raw");
  const auto state = array<float>(in_, "action.state");
  for (const std::string name : {"aloha", "all7", "short"}) {
    std::vector<uint8_t> mask;
    for (const auto& v : facts["delta_mask_" + name])
      mask.push_back(v.is_boolean() ? v.get<bool>() : v.get<int>() != 0);
    auto actions = raw;
    apply_delta_actions(actions, 7, state, mask);
    const auto want = array<float>(want_, "action.openpi.delta." + name);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(actions[i], want[i], 1e-6) << name << " " << i;
    undo_delta_actions(actions, 7, state, mask);
    const auto back = array<float>(want_, "action.openpi.delta." + name + ".back");
    for (size_t i = 0; i < back.size(); ++i)
      EXPECT_NEAR(actions[i], back[i], 1e-6) << name << " " << i;
  }
}

FeatureStats stats_of(std::vector<double> q01, std::vector<double> q99) {
  FeatureStats s;
  s.q01 = std::move(q01);
  s.q99 = std::move(q99);
  s.source = "meta/stats.json";
  return s;
}

std::string error_of(NormMode mode, int64_t width, const FeatureStats& stats,
                     NormFlavour flavour = NormFlavour::kLongship) {
  try {
    Normalizer("observation.state", mode, flavour, width, stats);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Normalizer, ConstantColumnStaysFiniteEvenWhenTheValueMoves) {
  const Normalizer n("observation.state", NormMode::kQuantiles, NormFlavour::kLongship, 2,
                     stats_of({0, 3}, {1, 3}));
  std::vector<float> out(2);
  n.normalise(std::vector<float>{0.5F, 3.001F}, out);
  EXPECT_EQ(out, (std::vector<float>{0, 0}));
  n.denormalise(std::vector<float>{0, 12.5F}, out);
  EXPECT_EQ(out, (std::vector<float>{0.5F, 3}));
  ASSERT_EQ(n.notes().size(), 1U);
  EXPECT_THAT(n.notes()[0], HasSubstr("observation.state[1] is constant (3)"));
}

// A column that is 3.0 everywhere, and a value that moved by a thousandth: each reference's own
// answer, in its arithmetic.
TEST(Normalizer, ConstantColumnAsEachReferenceTreatsIt) {
  FeatureStats stats;
  stats.min = stats.max = stats.mean = stats.q01 = stats.q99 = {3.0};
  stats.std = {0.0};
  const auto value_of = [&](NormFlavour flavour, NormMode mode, float x) {
    const Normalizer norm("observation.state", mode, flavour, 1, stats);
    float out = 0;
    norm.normalise({&x, 1}, {&out, 1});
    return out;
  };
  const float moved = 3.001F;
  const double delta = static_cast<double>(moved) - 3.0;
  const auto quantiles = NormMode::kQuantiles;
  EXPECT_EQ(value_of(NormFlavour::kOpenpi, quantiles, 3.0F), -1.0F);
  EXPECT_EQ(value_of(NormFlavour::kOpenpi, quantiles, moved),
            static_cast<float>(delta / 1e-6 * 2 - 1));
  EXPECT_NEAR(value_of(NormFlavour::kOpenpi, quantiles, moved), 1999, 1);
  for (const NormFlavour flavour : {NormFlavour::kLerobot, NormFlavour::kLoongforge}) {
    EXPECT_EQ(value_of(flavour, quantiles, 3.0F), -1.0F);
    EXPECT_NEAR(value_of(flavour, quantiles, moved), 199'999, 20);
  }
  for (const NormMode mode : {quantiles, NormMode::kMeanStd, NormMode::kMinMax}) {
    EXPECT_EQ(value_of(NormFlavour::kLongship, mode, 3.0F), 0.0F);
    EXPECT_TRUE(std::isfinite(value_of(NormFlavour::kLongship, mode, moved)));
  }
}

TEST(Normalizer, RoundingAroundAConstantCountsAsConstant) {
  const Normalizer n("s", NormMode::kQuantiles, NormFlavour::kLongship, 1,
                     stats_of({3.0 - 1e-10}, {3.0 + 1e-7}));
  EXPECT_THAT(n.degenerate(), ElementsAre(0));
}

TEST(Normalizer, NearlyConstantColumnIsUsedAndMentioned) {
  const Normalizer n("s", NormMode::kQuantiles, NormFlavour::kLongship, 1,
                     stats_of({100}, {100.001}));
  EXPECT_TRUE(n.degenerate().empty());
  ASSERT_EQ(n.notes().size(), 1U);
  EXPECT_THAT(n.notes()[0], HasSubstr("s[0] is nearly constant"));
}

TEST(Normalizer, QuantilesThatHideRareValuesAreMentioned) {
  FeatureStats s = stats_of({0}, {0});
  s.min = {0};
  s.max = {1};
  const Normalizer n("action", NormMode::kQuantiles, NormFlavour::kLongship, 1, s);
  ASSERT_EQ(n.notes().size(), 1U);
  EXPECT_THAT(n.notes()[0], HasSubstr("ranges from 0 to 1"));
  EXPECT_THAT(n.notes()[0], HasSubstr("min_max"));
}

TEST(Normalizer, ZeroStdColumn) {
  FeatureStats s;
  s.mean = {-2, 5};
  s.std = {0, 2};
  const Normalizer n("s", NormMode::kMeanStd, NormFlavour::kLongship, 2, s);
  std::vector<float> out(2);
  n.normalise(std::vector<float>{7, 9}, out);
  EXPECT_EQ(out, (std::vector<float>{0, 2}));
  n.denormalise(out, out);
  EXPECT_EQ(out, (std::vector<float>{-2, 9}));
}

TEST(Normalizer, IdentityNeedsNoStatistics) {
  const Normalizer n("s", NormMode::kIdentity, NormFlavour::kLongship, 2, {});
  std::vector<float> out(2);
  n.normalise(std::vector<float>{7, 9}, out);
  EXPECT_EQ(out, (std::vector<float>{7, 9}));
}

TEST(Normalizer, ErrorsNameFileColumnAndNumbers) {
  EXPECT_THAT(error_of(NormMode::kQuantiles, 6,
                       stats_of(std::vector<double>(14, 0), std::vector<double>(14, 1))),
              ::testing::AllOf(HasSubstr("meta/stats.json"), HasSubstr("observation.state"),
                               HasSubstr("14"), HasSubstr("6")));
  EXPECT_THAT(error_of(NormMode::kMeanStd, 1, stats_of({0}, {1})),
              HasSubstr("no statistic 'mean'"));
  EXPECT_THAT(error_of(NormMode::kQuantiles, 2, stats_of({0, NAN}, {1, 1})),
              HasSubstr("observation.state[1] is nan"));
  EXPECT_THAT(error_of(NormMode::kQuantiles, 1, stats_of({2}, {1})),
              HasSubstr("below the lower bound 2"));
  EXPECT_THAT(error_of(NormMode::kMinMax, 1, {}, NormFlavour::kOpenpi),
              HasSubstr("openpi has no min_max"));
  EXPECT_THAT(error_of(NormMode::kScale, 1, {}), HasSubstr("loongforge"));
  const Normalizer n("s", NormMode::kQuantiles, NormFlavour::kLongship, 2,
                     stats_of({0, 0}, {1, 1}));
  std::vector<float> three(3);
  EXPECT_THROW(n.normalise(three, three), ShapeError);
  EXPECT_THROW(n.denormalise(three, three), ShapeError);
}

TEST(Normalizer, WordsParseBothWays) {
  for (const char* word : {"quantiles", "mean_std", "min_max", "scale", "identity"}) {
    EXPECT_EQ(norm_mode_name(parse_norm_mode(word)), word);
  }
  for (const char* word : {"longship", "openpi", "lerobot", "loongforge"}) {
    EXPECT_EQ(norm_flavour_name(parse_norm_flavour(word)), word);
  }
  try {
    parse_norm_mode("quantile");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("quantiles, mean_std, min_max, scale, identity"));
  }
}

}  // namespace
}  // namespace longship::data
