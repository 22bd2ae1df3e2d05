// GR00T's training pictures. Digests were made by albumentations 1.4.18 with OpenCV 4.12 from the
// formula picture of tests/golden/groot_preprocess.
#include "data/augment/albumentations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "data/groot_formula.h"
#include "data/image/area_resize.h"
#include "support/expect_error.h"

namespace longship::data {
namespace {

using testing::digest;
using testing::expect_error;
using testing::formula_picture;

struct Coloured {
  ColourOp op;
  double factor;
  int64_t h, w;
  const char* digest;
};

TEST(Albumentations, ColoursEqualTheReference) {
  // Widths of a few, of none and of exactly so many blocks of 32.
  const std::vector<Coloured> cases = {{ColourOp::kBrightness, 0.0, 40, 45, "df469ce41663d86d"},
                                       {ColourOp::kBrightness, 0.7, 17, 31, "6beda51a24c91ff2"},
                                       {ColourOp::kBrightness, 1.0, 64, 64, "57a0351b37c4ef85"},
                                       {ColourOp::kBrightness, 1.2875, 30, 340, "83ca3ec4ce40af28"},
                                       {ColourOp::kContrast, 0.0, 40, 45, "daf9d8d2b96ddc04"},
                                       {ColourOp::kContrast, 0.6123, 17, 31, "40a318cb3c40e9d4"},
                                       {ColourOp::kContrast, 1.39, 64, 64, "0bd7022bd8cd1b68"},
                                       {ColourOp::kContrast, 1.0, 30, 340, "17faa4f5365b1966"},
                                       {ColourOp::kSaturation, 0.0, 40, 45, "1b94d9b01d82b70e"},
                                       {ColourOp::kSaturation, 0.5, 17, 31, "549c5463286de497"},
                                       {ColourOp::kSaturation, 0.785, 64, 64, "577fd8e242350dbc"},
                                       {ColourOp::kSaturation, 1.4719, 30, 340, "dbe98d3abf7dcaac"},
                                       {ColourOp::kHue, -0.08, 40, 45, "f15ab40df9f144ea"},
                                       {ColourOp::kHue, 0.0371, 17, 31, "ce3e9bbe7a294a14"},
                                       {ColourOp::kHue, 0.08, 64, 64, "54a00acd44f9db8a"},
                                       {ColourOp::kHue, 0.5, 30, 340, "f5702ca9a16f5cd9"},
                                       {ColourOp::kHue, 0.0, 9, 32, "0a6130dfd28d63fa"}};
  for (const Coloured& c : cases) {
    Image image = formula_picture(c.h, c.w);
    change_colour(image, c.op, c.factor);
    EXPECT_EQ(digest(image), c.digest)
        << "operation " << static_cast<int>(c.op) << " factor " << c.factor;
  }
}

constexpr ColourOp kB = ColourOp::kBrightness, kC = ColourOp::kContrast, kS = ColourOp::kSaturation,
                   kH = ColourOp::kHue;

TEST(Albumentations, TrainingPicturesEqualTheReference) {
  struct Case {
    int64_t h, w;
    bool letterbox;
    AlbumentationsDraw draw;
    PictureSize size;
    const char* digest;
  };
  const std::vector<Case> cases = {{256,
                                    256,
                                    true,
                                    {0.31, 0.87, 0.9, 1.3, 0.6, 0.05, {kH, kB, kS, kC}},
                                    {256, 256},
                                    "2b5c9be852781203"},
                                   {480,
                                    640,
                                    false,
                                    {0.99, 0.02, 1.25, 0.7, 1.4, -0.07, {kB, kC, kS, kH}},
                                    {256, 340},
                                    "1e210a481a75ccec"},
                                   {224,
                                    300,
                                    true,
                                    {0, 0.5, 0.75, 0.65, 1.2, 0.08, {kS, kH, kC, kB}},
                                    {256, 256},
                                    "59a1ed8b6cd74a14"}};
  for (const Case& c : cases) {
    AlbumentationsConfig config;
    config.letterbox = c.letterbox;
    const Image got = train_picture(formula_picture(c.h, c.w), config, c.draw);
    EXPECT_EQ((PictureSize{got.height, got.width}), c.size);
    EXPECT_EQ(digest(got), c.digest) << c.h << "x" << c.w;
  }
}

TEST(Albumentations, WithoutJitterTheMiddleIsTheEvaluation) {
  AlbumentationsConfig config;
  config.jitter = {0, 0, 0, 0};
  AlbumentationsDraw draw = draw_albumentations(config, {42, 7}, 3);
  EXPECT_EQ(draw.brightness, 1);
  EXPECT_EQ(draw.hue, 0);
  draw.crop_y = draw.crop_x = 0.49;  // offset 6 of 0 .. 13
  const Image image = formula_picture(480, 640);
  EXPECT_EQ(train_picture(image, config, draw).rgb, eval_picture(image, config).rgb);
}

bool same(const AlbumentationsDraw& a, const AlbumentationsDraw& b) {
  return a.crop_y == b.crop_y && a.crop_x == b.crop_x && a.brightness == b.brightness &&
         a.contrast == b.contrast && a.saturation == b.saturation && a.hue == b.hue &&
         a.order == b.order;
}

TEST(Albumentations, DrawsDependOnSeedStepAndSampleOnly) {
  const AlbumentationsConfig config;
  const auto draw = draw_albumentations(config, {42, 7}, 3);
  EXPECT_TRUE(same(draw, draw_albumentations(config, {42, 7}, 3)));
  EXPECT_FALSE(same(draw, draw_albumentations(config, {43, 7}, 3)));
  EXPECT_FALSE(same(draw, draw_albumentations(config, {42, 8}, 3)));
  EXPECT_FALSE(same(draw, draw_albumentations(config, {42, 7}, 4)));
}

TEST(Albumentations, DrawsFillTheirRangesEvenly) {
  const AlbumentationsConfig config;
  constexpr int kDraws = 6000;
  std::vector<double> low(6, 1e9), high(6, -1e9), sum(6, 0);
  std::map<std::array<ColourOp, 4>, int> orders;
  for (int64_t id = 0; id < kDraws; ++id) {
    const auto d = draw_albumentations(config, {1, 0}, id);
    const double values[] = {d.crop_y, d.crop_x, d.brightness, d.contrast, d.saturation, d.hue};
    for (size_t i = 0; i < low.size(); ++i) {
      low[i] = std::min(low[i], values[i]);
      high[i] = std::max(high[i], values[i]);
      sum[i] += values[i];
    }
    ++orders[d.order];
  }
  const double from[] = {0, 0, 0.7, 0.6, 0.5, -0.08}, to[] = {1, 1, 1.3, 1.4, 1.5, 0.08};
  for (size_t i = 0; i < low.size(); ++i) {
    const double width = to[i] - from[i];
    EXPECT_GE(low[i], from[i]);
    EXPECT_LE(high[i], to[i]);
    EXPECT_NEAR(low[i], from[i], width * 0.005);
    EXPECT_NEAR(high[i], to[i], width * 0.005);
    EXPECT_NEAR(sum[i] / kDraws, from[i] + width / 2, width * 0.02);
  }
  EXPECT_EQ(orders.size(), 24U);
  for (const auto& [order, count] : orders) {
    EXPECT_NEAR(count, kDraws / 24.0, 80);  // five standard deviations
    EXPECT_EQ(std::set<ColourOp>(order.begin(), order.end()).size(), 4U);
  }
}

TEST(Albumentations, RefusesWhatIsOutOfRange) {
  AlbumentationsConfig config;
  config.crop_fraction = 0;
  expect_error<ConfigError>([&] { config.check(); }, {"crop_fraction: 0"});
  config = {};
  config.shortest_edge = -3;
  expect_error<ConfigError>([&] { config.check(); }, {"shortest_edge: -3"});
  config = {};
  config.jitter.hue = 0.7;
  expect_error<ConfigError>([&] { config.check(); }, {"jitter.hue: 0.7"});
  config = {};
  config.jitter.contrast = std::numeric_limits<double>::quiet_NaN();
  expect_error<ConfigError>([&] { config.check(); }, {"jitter.contrast: nan"});
  Image broken{2, 2, {1}};
  expect_error<DataError>([&] { change_colour(broken, kH, 0.1); }, {"2x2", "1 bytes"});
  Image image = formula_picture(2, 2);
  expect_error<ConfigError>([&] { change_colour(image, kB, 1e9); }, {"100"});
}

}  // namespace
}  // namespace longship::data
