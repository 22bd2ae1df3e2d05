#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "data/augment/config.h"
#include "data/augment/picture.h"

namespace longship::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AugmentConfig preset(const std::string& name) {
  AugmentConfig config;
  config.preset = name;
  config.resolve();
  return config;
}

AugmentTransform transform(const std::string& name, double low, double high, double weight = 1) {
  AugmentTransform t;
  t.name = name;
  t.range = {low, high};
  t.weight = weight;
  return t;
}

AugmentConfig custom(std::vector<AugmentTransform> transforms) {
  AugmentConfig config;
  config.preset = "custom";
  config.transforms = std::move(transforms);
  config.resolve();
  return config;
}

std::string config_error(AugmentConfig config) {
  try {
    config.resolve();
  } catch (const ConfigError& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

PictureAugment draw(const AugmentConfig& config, int64_t id, const std::string& slot = "base_0_rgb",
                    uint64_t step = 0, uint64_t seed = 42, const std::string& camera = "cam") {
  return draw_augment(config, {seed, step}, id, slot, camera, 224, 224);
}

bool same(const PictureAugment& a, const PictureAugment& b) {
  std::array<float, kAugmentNumbers> x{}, y{};
  write_augment(a, x);
  write_augment(b, y);
  return x == y;
}

std::vector<float> random_picture(int64_t height, int64_t width, uint64_t seed = 1) {
  std::vector<double> u(static_cast<size_t>(3 * height * width));
  fill_uniform(make_key(seed, RngStream::kTest), u);
  std::vector<float> out;
  for (const double v : u) out.push_back(static_cast<float>(v * 2 - 1));
  return out;
}

TEST(AugmentConfig, PresetsAreTheReferences) {
  const AugmentConfig openpi = preset("openpi");
  std::vector<std::string> names;
  for (const auto& t : openpi.transforms) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("crop", "rotate", "brightness", "contrast", "saturation"));
  EXPECT_THAT(openpi.transforms[0].range, ElementsAre(0.95, 0.95));
  EXPECT_THAT(openpi.transforms[1].range, ElementsAre(-5, 5));
  EXPECT_THAT(openpi.transforms[2].range, ElementsAre(0.7, 1.3));
  EXPECT_THAT(openpi.transforms[3].range, ElementsAre(0.6, 1.4));
  EXPECT_THAT(openpi.transforms[4].range, ElementsAre(0.5, 1.5));
  EXPECT_EQ(openpi.colour, "openpi");
  EXPECT_EQ(openpi.interpolation, "bilinear");
  EXPECT_FALSE(openpi.max_transforms);
  const AugmentConfig lerobot = preset("lerobot");
  names.clear();
  for (const auto& t : lerobot.transforms) names.push_back(t.name);
  EXPECT_THAT(names,
              ElementsAre("brightness", "contrast", "saturation", "hue", "sharpness", "affine"));
  EXPECT_EQ(lerobot.max_transforms, 3);
  EXPECT_EQ(lerobot.colour, "torchvision");
  EXPECT_EQ(lerobot.interpolation, "nearest");
  AugmentConfig again = lerobot;
  again.resolve();
  EXPECT_EQ(again.transforms.size(), 6u);
  EXPECT_FALSE(preset("none").enabled());
}

TEST(AugmentConfig, FaultsNameKeyAndValue) {
  AugmentConfig c;
  c.colour = "openpi";
  EXPECT_THAT(config_error(c), HasSubstr("no effect with preset none"));
  c = {};
  c.preset = "custom";
  EXPECT_THAT(config_error(c), HasSubstr("preset custom needs a list"));
  const auto fault = [](std::vector<AugmentTransform> list) {
    AugmentConfig config;
    config.preset = "custom";
    config.transforms = std::move(list);
    return config_error(config);
  };
  EXPECT_THAT(fault({transform("blur", 0, 1)}), HasSubstr("unknown transform 'blur'; there are"));
  EXPECT_THAT(fault({transform("hue", -0.6, 0)}),
              HasSubstr("transforms.0.range: [-0.6, 0] of 'hue' must be [low, high] within -0.5"));
  EXPECT_THAT(fault({transform("crop", 0.9, 0.8)}), HasSubstr("[0.9, 0.8]"));
  EXPECT_THAT(fault({transform("crop", 0.9, 1), transform("hue", 0, 0), transform("rotate", 0, 1)}),
              HasSubstr("must stand together"));
  EXPECT_THAT(
      fault({transform("hue", 0, 0), transform("rotate", 0, 1), transform("contrast", 1, 1)}),
      HasSubstr("must stand together"));
  EXPECT_THAT(fault({transform("rotate", 0, 1), transform("crop", 0.9, 1)}),
              HasSubstr("crop must stand before rotate"));
  EXPECT_THAT(fault({transform("sharpness", 0, 1), transform("hue", 0, 0)}),
              HasSubstr("sharpness must stand after the colours"));
  EXPECT_THAT(fault({transform("hue", 0, 0), transform("hue", 0, 0.1)}),
              HasSubstr("'hue' stands twice"));
  EXPECT_THAT(fault({transform("hue", 0, 0, 0)}), HasSubstr("weight: 0 must be above 0"));
  EXPECT_THAT(fault({transform("hue", 0, 0, 2)}), HasSubstr("weight: has no effect"));
  AugmentTransform shifted = transform("hue", 0, 0);
  shifted.translate = {0.1, 0.1};
  EXPECT_THAT(fault({shifted}), HasSubstr("translate: has no effect on 'hue'"));
  shifted = transform("affine", 0, 0);
  shifted.translate = {0.1, 1.1};
  EXPECT_THAT(fault({shifted}), HasSubstr("[0.1, 1.1] must be [x, y]"));
  c.transforms = {transform("hue", 0, 0)};
  c.max_transforms = 2;
  EXPECT_THAT(config_error(c), HasSubstr("max_transforms: 2 of 1 transforms"));
  c.max_transforms = std::nullopt;
  c.random_order = true;
  EXPECT_THAT(config_error(c), HasSubstr("random_order: has no effect"));
}

TEST(AugmentDraw, IsAFunctionOfSeedStepSampleAndCamera) {
  const AugmentConfig config = preset("openpi");
  const PictureAugment first = draw(config, 7);
  EXPECT_TRUE(same(first, draw(config, 7)));
  EXPECT_FALSE(same(first, draw(config, 8)));
  EXPECT_FALSE(same(first, draw(config, 7, "base_0_rgb", 1)));
  EXPECT_FALSE(same(first, draw(config, 7, "base_0_rgb", 0, 43)));
  EXPECT_FALSE(same(first, draw(config, 7, "base_1_rgb")));
  AugmentConfig shared = config;
  shared.share_cameras = true;
  EXPECT_TRUE(same(draw(shared, 7, "a"), draw(shared, 7, "b")));
  EXPECT_FALSE(same(draw(shared, 7, "a"), draw(shared, 8, "a")));
}

// Adding or removing a transform changes none of the others' numbers.
TEST(AugmentDraw, TransformsDoNotShiftEachOthersNumbers) {
  const PictureAugment both = draw(custom({transform("crop", 0.8, 1), transform("brightness", 0, 2),
                                           transform("hue", -0.5, 0.5)}),
                                   5);
  const PictureAugment one = draw(custom({transform("hue", -0.5, 0.5)}), 5);
  EXPECT_EQ(both.ops[1], ColourOp::kHue);
  EXPECT_EQ(both.factors[1], one.factors[0]);
}

// The recorded numbers of one key: a change of the draws would change every seeded run.
TEST(AugmentDraw, NumbersOfAKeyAreFrozen) {
  const PictureAugment a = draw(preset("openpi"), 1234, "base_0_rgb", 77);
  const std::array<float, 4> crop = {a.crop_x, a.crop_y, a.crop_w, a.crop_h};
  EXPECT_EQ(crop[2], 212);
  EXPECT_EQ(crop[3], 212);
  // Brightness is number 1 of its eight, at 32 hash bits of the name * 2^16 + kind * 8.
  double u = 0;
  const uint64_t base = (hash_name("base_0_rgb") & 0xFFFFFFFFULL) << 16;
  fill_uniform(make_key(42, RngStream::kAugment, 77, 1234), {&u, 1}, base + 3 * 8 + 1);
  EXPECT_EQ(a.ops[0], ColourOp::kBrightness);
  EXPECT_EQ(a.factors[0], static_cast<float>(0.7 + (1.3 - 0.7) * u));
}

TEST(AugmentDraw, ValuesFillTheirRangesEvenly) {
  const AugmentConfig config = preset("openpi");
  const int n = 4000;
  std::array<double, 3> sum{}, low{}, high{};
  std::map<float, int> offsets;
  low.fill(9);
  double angle_sum = 0, angle_square = 0;
  for (int i = 0; i < n; ++i) {
    const PictureAugment a = draw(config, i);
    for (size_t k = 0; k < 3; ++k) {
      sum[k] += a.factors[k];
      low[k] = std::min<double>(low[k], a.factors[k]);
      high[k] = std::max<double>(high[k], a.factors[k]);
    }
    ++offsets[a.crop_x];
    const double angle = std::atan2(a.place[3], a.place[0]) * 180 / M_PI;
    angle_sum += angle;
    angle_square += angle * angle;
    EXPECT_LE(std::abs(angle), 5.0001);
    // The middle stays where it is.
    EXPECT_NEAR(a.place[0] * 111.5F + a.place[1] * 111.5F + a.place[2], 111.5, 1e-4);
  }
  const std::array<double, 3> from = {0.7, 0.6, 0.5}, to = {1.3, 1.4, 1.5};
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_GE(low[k], from[k] - 1e-6);
    EXPECT_LE(high[k], to[k] + 1e-6);
    EXPECT_NEAR(sum[k] / n, 1.0, 4 * (to[k] - from[k]) / std::sqrt(12.0 * n));
  }
  EXPECT_EQ(offsets.size(), 13u);  // 224 - 212 + 1 places
  for (const auto& [x, count] : offsets) EXPECT_NEAR(count, n / 13.0, 5 * std::sqrt(n / 13.0)) << x;
  EXPECT_NEAR(angle_sum / n, 0, 4 * 10 / std::sqrt(12.0 * n));
  EXPECT_NEAR(angle_square / n, 100.0 / 12, 0.5);
}

TEST(AugmentDraw, WristCamerasKeepTheirGeometry) {
  const AugmentConfig config = preset("openpi");
  const PictureAugment by_slot = draw(config, 3, "left_wrist_0_rgb");
  EXPECT_FALSE(by_slot.moves(224, 224));
  EXPECT_EQ(by_slot.ops[2], ColourOp::kSaturation);
  EXPECT_FALSE(draw(config, 3, "image2", 0, 42, "observation.images.wrist").moves(224, 224));
  EXPECT_TRUE(draw(config, 3, "image2", 0, 42, "observation.images.top").moves(224, 224));
}

TEST(AugmentDraw, ASubsetIsChosenByWeightWithoutRepetition) {
  AugmentConfig config;
  config.preset = "custom";
  config.transforms = {transform("brightness", 0.5, 0.5, 1), transform("contrast", 0.5, 0.5, 2),
                       transform("saturation", 0.5, 0.5, 5)};
  config.max_transforms = 2;
  config.resolve();
  std::map<std::pair<ColourOp, ColourOp>, int> counts;
  const int n = 20000;
  for (int i = 0; i < n; ++i) {
    const PictureAugment a = draw(config, i);
    EXPECT_EQ(a.ops[2], ColourOp::kNone);
    ++counts[{a.ops[0], a.ops[1]}];
  }
  // Drawing one after the other: P(left out) = sum over orders of the two others.
  const auto pair_of = [](double a, double b) {  // of 8
    return a / 8 * b / (8 - a) + b / 8 * a / (8 - b);
  };
  const auto near = [&](ColourOp a, ColourOp b, double p) {
    EXPECT_NEAR(counts[std::pair(a, b)], n * p, 5 * std::sqrt(n * p));
  };
  near(ColourOp::kBrightness, ColourOp::kContrast, pair_of(1, 2));
  near(ColourOp::kBrightness, ColourOp::kSaturation, pair_of(1, 5));
  near(ColourOp::kContrast, ColourOp::kSaturation, pair_of(2, 5));
  EXPECT_EQ(counts.size(), 3u);  // always in the order of the list
}

TEST(AugmentDraw, RandomOrderOfColours) {
  AugmentConfig config;
  config.preset = "custom";
  config.transforms = {transform("brightness", 1, 1), transform("contrast", 1, 1),
                       transform("hue", 0, 0)};
  config.random_order = true;
  config.resolve();
  std::map<std::array<ColourOp, 4>, int> counts;
  for (int i = 0; i < 6000; ++i) ++counts[draw(config, i).ops];
  EXPECT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(AugmentApply, NothingKeepsTheBits) {
  const std::vector<float> before = random_picture(7, 5);
  std::vector<float> picture = before;
  apply_augment(draw_augment(preset("none"), {1, 2}, 3, "a", "b", 7, 5), picture, 7, 5);
  EXPECT_EQ(picture, before);
  PictureAugment whole;
  whole.crop_w = 5;
  whole.crop_h = 7;
  EXPECT_TRUE(whole.identity(7, 5));
  apply_augment(whole, picture, 7, 5);
  EXPECT_EQ(picture, before);
  // The frame as it is, through the sampler: whole positions keep their bits.
  whole.place[2] = 1e-30F;
  apply_augment(whole, picture, 7, 5);
  EXPECT_EQ(picture, before);
}

TEST(AugmentApply, QuarterTurnsPermutePixels) {
  for (const bool nearest : {false, true}) {
    std::vector<float> picture = random_picture(6, 6);
    const std::vector<float> before = picture;
    PictureAugment quarter;
    quarter.crop_w = quarter.crop_h = 6;
    quarter.nearest = nearest;
    quarter.place = {0, -1, 5, 1, 0, 0};  // (x, y) looks at (5 - y, x)
    apply_augment(quarter, picture, 6, 6);
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < 6; ++y) {
        for (int x = 0; x < 6; ++x) {
          EXPECT_EQ(picture[size_t(c * 36 + y * 6 + x)], before[size_t(c * 36 + x * 6 + 5 - y)]);
        }
      }
    }
    for (int i = 0; i < 3; ++i) apply_augment(quarter, picture, 6, 6);
    EXPECT_EQ(picture, before);
  }
}

TEST(AugmentApply, AShiftLeavesBlackBehind) {
  std::vector<float> picture(3 * 4 * 4, 0.5F);
  PictureAugment shift;
  shift.crop_w = shift.crop_h = 4;
  shift.place = {1, 0, -2, 0, 1, 0};  // looks two pixels to the left
  apply_augment(shift, picture, 4, 4);
  for (int i = 0; i < 48; ++i) EXPECT_EQ(picture[size_t(i)], i % 4 < 2 ? -1.0F : 0.5F) << i;
}

TEST(AugmentApply, GreyPicturesHaveNoHueAndNoSaturation) {
  std::vector<float> grey(3 * 5 * 5);
  for (size_t i = 0; i < 25; ++i) {
    grey[i] = grey[25 + i] = grey[50 + i] = static_cast<float>(i) / 16.0F - 0.75F;
  }
  for (const ColourOp op : {ColourOp::kHue, ColourOp::kSaturation}) {
    for (const bool openpi : {false, true}) {
      std::vector<float> picture = grey;
      PictureAugment a;
      a.crop_w = a.crop_h = 5;
      a.openpi_colour = openpi;
      a.ops[0] = op;
      a.factors[0] = 0.4F;
      apply_augment(a, picture, 5, 5);
      // torchvision's weights sum to 0.9999.
      const float bound = openpi || op == ColourOp::kHue ? 1e-6F : 1.3e-4F;
      for (size_t i = 0; i < picture.size(); ++i) EXPECT_NEAR(picture[i], grey[i], bound);
    }
  }
}

TEST(AugmentApply, ValuesStayInRange) {
  for (const char* name : {"openpi", "lerobot"}) {
    const AugmentConfig config = preset(name);
    for (int64_t id = 0; id < 50; ++id) {
      std::vector<float> picture = random_picture(16, 16, static_cast<uint64_t>(id));
      apply_augment(draw_augment(config, {1, 0}, id, "a", "b", 16, 16), picture, 16, 16);
      const auto [low, high] = std::minmax_element(picture.begin(), picture.end());
      EXPECT_GE(*low, -1.0F) << name << " " << id;
      EXPECT_LE(*high, 1.0F) << name << " " << id;
    }
  }
}

TEST(AugmentApply, FaultsNameTheSize) {
  std::vector<float> picture(10);
  EXPECT_THROW(apply_augment({}, picture, 2, 2), ShapeError);
  EXPECT_THROW(write_augment({}, picture), ShapeError);
}

}  // namespace
}  // namespace longship::data
