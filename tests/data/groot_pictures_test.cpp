// Pictures of GR00T: sizes, resampling and patches. Golden values of the processors, and digests of
// what OpenCV 4.12, Pillow 13.0 and torch 2.11 make of the golden case's formula picture.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/augment/albumentations.h"
#include "data/golden_arrays.h"
#include "data/groot_formula.h"
#include "data/image/area_resize.h"
#include "data/image/bicubic.h"
#include "data/image/letterbox.h"
#include "data/image/patches.h"
#include "support/expect_error.h"

namespace longship::data {
namespace {

using testing::array;
using testing::digest;
using testing::expect_error;
using testing::formula_picture;

Image golden_picture(const io::SafetensorsFile& file, const std::string& name) {
  const auto& shape = file.at(name).shape;
  return {shape[0], shape[1], array<uint8_t>(file, name)};
}

void expect_same(const Image& got, const Image& want) {
  ASSERT_EQ(got.height, want.height);
  ASSERT_EQ(got.width, want.width);
  EXPECT_TRUE(got.rgb == want.rgb);
}

class GrootPictures : public ::testing::Test {
 protected:
  io::SafetensorsFile inputs =
      testing::golden_tensors("groot_preprocess/image_eval/inputs.safetensors");
  io::SafetensorsFile expected =
      testing::golden_tensors("groot_preprocess/image_eval/expected.safetensors");
  nlohmann::json facts = testing::golden_json("groot_preprocess/image_eval/inputs.json");

  AlbumentationsConfig config_of(const nlohmann::json& row) const {
    AlbumentationsConfig config;
    config.shortest_edge = row["shortest_image_edge"];
    config.crop_fraction = row["crop_fraction"];
    config.letterbox = facts["eval_has_letterbox"];
    return config;
  }
};

TEST_F(GrootPictures, EvaluationIsExact) {
  int compared = 0;
  for (const auto& [key, row] : facts["meta"].items()) {
    if (key.rfind("image", 0) != 0) continue;
    SCOPED_TRACE(key);
    const Image got = eval_picture(golden_picture(inputs, key), config_of(row));
    expect_same(got, golden_picture(expected, "eval" + key.substr(5)));
    ++compared;
  }
  EXPECT_GE(compared, 5);
}

TEST_F(GrootPictures, EvaluationAtRealSizesIsExact) {
  int compared = 0;
  for (const auto& [key, row] : facts["meta"].items()) {
    if (key.rfind("formula_", 0) != 0) continue;
    SCOPED_TRACE(key);
    const size_t cross = key.find('x');
    const int64_t h = std::stoll(key.substr(8, cross - 8)), w = std::stoll(key.substr(cross + 1));
    const Image got = eval_picture(formula_picture(h, w), config_of(row));
    EXPECT_EQ(got.height, row["out"][0].get<int64_t>());
    EXPECT_EQ(got.width, row["out"][1].get<int64_t>());
    EXPECT_EQ(testing::full_digest(got), row["sha256_hwc"].get<std::string>());
    ++compared;
  }
  EXPECT_GE(compared, 3);
}

TEST_F(GrootPictures, StagesAreExact) {
  const Image source = golden_picture(inputs, "stage.source");
  expect_same(letterbox_square(source), golden_picture(expected, "stage.letterbox_61x83"));
  expect_same(crop(source, center_crop_box(source.height, source.width, 0.95)),
              golden_picture(expected, "stage.center_crop_0.95"));
  expect_same(resize_smallest_max_size(source, 48),
              golden_picture(expected, "stage.area_shrink_61x83_to_48"));
  expect_same(resize_smallest_max_size(source, 70),
              golden_picture(expected, "stage.area_enlarge_61x83_to_70"));
}

struct Resized {
  int64_t h, w, to_h, to_w;
  const char* digest;
};

TEST(AreaResize, EqualsOpenCv) {
  const std::vector<Resized> cases = {
      {480, 640, 256, 341, "43caed46ac1c548c"}, {243, 323, 256, 340, "ef2ecc87b501d5a3"},
      {243, 243, 256, 256, "68f54f8f7e414ded"}, {640, 640, 256, 256, "f0bff27e5dd36f9d"},
      {128, 96, 64, 48, "458922bf3dff92d4"},    {90, 120, 30, 40, "eae01faa36ff4287"},
      {99, 60, 33, 30, "ba7f88d8e9bb3276"},     {64, 200, 32, 50, "7c7a08daeedbecb8"},
      {37, 91, 400, 300, "af231dea9e28afbb"},   {100, 50, 60, 90, "b73ce684acab250d"},
      {5, 7, 5, 3, "e2a2e23e19ae3334"},         {200, 3, 100, 2, "6de61a1ce923e951"}};
  for (const Resized& c : cases) {
    const Image got = resize_area(formula_picture(c.h, c.w), c.to_h, c.to_w);
    EXPECT_EQ(digest(got), c.digest) << c.h << "x" << c.w << " -> " << c.to_h << "x" << c.to_w;
  }
}

TEST(AreaResize, OnePixelAndTheSameSize) {
  const Image one{1, 1, {10, 20, 30}};
  expect_same(resize_area(one, 2, 2), {2, 2, {10, 20, 30, 10, 20, 30, 10, 20, 30, 10, 20, 30}});
  const Image four{2, 2, {0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0}};
  expect_same(resize_area(four, 1, 1), {1, 1, {1, 1, 1}});  // 2x2 rounds a half up
  expect_same(resize_area(four, 2, 2), four);
}

TEST(AreaResize, RefusesWhatIsNoPicture) {
  expect_error<DataError>([] { resize_area({2, 3, {1, 2, 3}}, 1, 1); }, {"2x3", "3 bytes", "18"});
  expect_error<ShapeError>([] { resize_area({1, 1, {1, 2, 3}}, 0, 5); }, {"0x5", "1x1"});
  expect_error<ConfigError>([] { smallest_max_size(4, 4, 0); }, {"shortest side 0"});
}

TEST(SmallestMaxSize, RoundsHalvesToEvenAndKeepsAFittingSize) {
  EXPECT_EQ(smallest_max_size(480, 640, 256), (PictureSize{256, 341}));
  EXPECT_EQ(smallest_max_size(243, 323, 256), (PictureSize{256, 340}));
  EXPECT_EQ(smallest_max_size(256, 999, 256), (PictureSize{256, 999}));
  EXPECT_EQ(smallest_max_size(2, 5, 1), (PictureSize{1, 2}));  // 2.5
  EXPECT_EQ(smallest_max_size(7, 2, 1), (PictureSize{4, 1}));  // 3.5
}

TEST(Letterbox, PutsTheExtraPixelBehind) {
  const Image row{1, 4, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4}};
  const Image square = letterbox_square(row);
  ASSERT_EQ(square.height, 4);
  for (size_t y = 0; y < 4; ++y) EXPECT_EQ(square.rgb[y * 12], y == 1 ? 1 : 0);
  const Image column{4, 1, row.rgb};
  const Image wide = letterbox_square(column);
  EXPECT_EQ(wide.rgb[3 * 12 + 3], 4);
  EXPECT_EQ(wide.rgb[3 * 12 + 6], 0);
}

TEST(Crop, RandomBoxesStayInsideAndReachTheEdges) {
  const CropBox first = random_crop_box(100, 50, 0.95, 0.0, 0.999999999);
  EXPECT_EQ(first.top, 0);
  EXPECT_EQ(first.height, 95);
  EXPECT_EQ(first.width, 47);
  EXPECT_EQ(first.left, 3);
  EXPECT_EQ(random_crop_box(3, 3, 0.1, 0.5, 0.5).height, 1);
  EXPECT_EQ(random_crop_box(100, 50, 1.0, 0.9, 0.9).top, 0);
  expect_error<ConfigError>([] { center_crop_box(10, 10, 1.5); }, {"1.5"});
  expect_error<ShapeError>([] { crop({1, 1, {1, 2, 3}}, {0, 1, 1, 1}); }, {"column 1", "1x1"});
}

TEST(Bicubic, EqualsPillow) {
  const std::vector<Resized> cases = {
      {256, 256, 252, 252, "98020e2719408648"}, {256, 340, 252, 336, "a6645ee10ae42df9"},
      {60, 43, 56, 56, "ac3bcd4544f9c66e"},     {70, 43, 56, 56, "bdfbbde7fba6e734"},
      {256, 340, 256, 352, "f9e36c1f6f637a68"}, {171, 88, 155, 189, "d5826bc76adcf393"},
      {30, 20, 90, 10, "1e4d41f440d03474"},     {480, 640, 476, 644, "9d25d98e28190d74"},
      {207, 178, 54, 155, "6048f5823b96636a"},  {100, 100, 60, 80, "34e883ab90a5786a"}};
  for (const Resized& c : cases) {
    const Image got = resize_bicubic(formula_picture(c.h, c.w), c.to_h, c.to_w);
    EXPECT_EQ(digest(got), c.digest) << c.h << "x" << c.w << " -> " << c.to_h << "x" << c.to_w;
  }
}

TEST(Bicubic, EqualsTorch) {
  const std::vector<Resized> cases = {{256, 340, 256, 352, "78b4facd09cea62b"},
                                      {480, 640, 480, 608, "08ac653c435bd82c"},
                                      {171, 88, 155, 189, "14f0037efdb1bff1"},
                                      {30, 20, 90, 10, "1e4d41f440d03474"}};
  for (const Resized& c : cases) {
    const Image got =
        resize_bicubic(formula_picture(c.h, c.w), c.to_h, c.to_w, BicubicFlavour::kTorchU8);
    EXPECT_EQ(digest(got), c.digest) << c.h << "x" << c.w << " -> " << c.to_h << "x" << c.to_w;
  }
}

TEST(SmartResize, EqualsTheProcessors) {
  struct Case {
    int64_t h, w;
    PictureSize n16, qwen;
  };
  const std::vector<Case> cases = {
      {256, 256, {252, 252}, {256, 256}},       {256, 340, {252, 336}, {256, 352}},
      {70, 43, {56, 56}, {352, 224}},           {56, 60, {56, 56}, {256, 288}},
      {20, 25, {56, 84}, {256, 288}},           {8000, 9000, {1792, 1792}, {3840, 4320}},
      {9000, 100, {7000, 112}, {8992, 96}},     {1, 150, {28, 140}, {32, 3136}},
      {5000, 5000, {1792, 1792}, {4096, 4096}}, {480, 640, {476, 644}, {480, 640}},
      {200, 260, {196, 252}, {256, 320}}};
  for (const Case& c : cases) {
    EXPECT_EQ(smart_resize(c.h, c.w, SmartResize::groot_n16()), c.n16) << c.h << "x" << c.w;
    EXPECT_EQ(smart_resize(c.h, c.w, SmartResize::qwen3_vl()), c.qwen) << c.h << "x" << c.w;
  }
  expect_error<DataError>([] { smart_resize(14, 3000, SmartResize::groot_n16()); },
                          {"14x3000", "200 times"});
}

TEST(GrootPixels, OfTheN16ProcessorAreExact) {
  const auto inputs = testing::golden_tensors("groot_preprocess/prompt_n16/inputs.safetensors");
  const auto expected = testing::golden_tensors("groot_preprocess/prompt_n16/expected.safetensors");
  const auto from = array<int64_t>(inputs, "image_sizes");
  const auto to = array<int64_t>(expected, "image_sizes");
  ASSERT_GE(from.size(), 12U);
  for (size_t k = 0; k < from.size() / 2; ++k) {
    SCOPED_TRACE(k);
    const PictureSize size = smart_resize(from[2 * k], from[2 * k + 1], SmartResize::groot_n16());
    ASSERT_EQ(size, (PictureSize{to[2 * k], to[2 * k + 1]}));
    const Image image =
        resize_bicubic(formula_picture(from[2 * k], from[2 * k + 1]), size.height, size.width);
    std::vector<float> chw(image.rgb.size());
    normalize_chw(image, chw);
    const auto want = array<float>(expected, "pixel_values." + std::to_string(k) + ".stride7");
    size_t i = 0;
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < size.height; y += 7) {
        for (int64_t x = 0; x < size.width; x += 7, ++i) {
          ASSERT_LT(i, want.size());
          ASSERT_EQ(chw[static_cast<size_t>((c * size.height + y) * size.width + x)], want[i])
              << "channel " << c << " row " << y << " column " << x;
        }
      }
    }
    EXPECT_EQ(i, want.size());
  }
}

TEST(Patches, RasterRowsHoldThePixels) {
  const Image image = formula_picture(28, 56);
  std::vector<float> chw(image.rgb.size()), rows(image.rgb.size());
  normalize_chw(image, chw);
  raster_patches(image, 14, 2, rows);
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < 28; ++y) {
      for (int64_t x = 0; x < 56; ++x) {
        const int64_t patch = y / 14 * 4 + x / 14;
        const int64_t value = ((y % 14) * 14 + x % 14) * 3 + c;
        ASSERT_EQ(rows[static_cast<size_t>(patch * 588 + value)],
                  chw[static_cast<size_t>((c * 28 + y) * 56 + x)]);
      }
    }
  }
}

TEST(Patches, MergeBlockRowsHoldThePixelsOncePerFrame) {
  const Image image = formula_picture(64, 96);  // 4 x 6 patches, 2 x 3 blocks
  std::vector<float> chw(image.rgb.size()), rows(image.rgb.size() * 2);
  normalize_chw(image, chw);
  merge_block_patches(image, 16, 2, 2, rows);
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < 64; ++y) {
      for (int64_t x = 0; x < 96; ++x) {
        const int64_t gy = y / 16, gx = x / 16;
        const int64_t patch = (gy / 2 * 3 + gx / 2) * 4 + gy % 2 * 2 + gx % 2;
        for (int64_t t = 0; t < 2; ++t) {
          const int64_t value = ((c * 2 + t) * 16 + y % 16) * 16 + x % 16;
          ASSERT_EQ(rows[static_cast<size_t>(patch * 1536 + value)],
                    chw[static_cast<size_t>((c * 64 + y) * 96 + x)]);
        }
      }
    }
  }
}

TEST(Patches, RefuseOtherSizes) {
  expect_error<ShapeError>([] { patch_grid(252, 255, 14, 2); }, {"252x255", "14", "28"});
  const Image image = formula_picture(28, 28);
  std::vector<float> small(10);
  expect_error<ShapeError>([&] { raster_patches(image, 14, 2, small); }, {"10", "4 rows of 588"});
  expect_error<ShapeError>([&] { normalize_chw(image, small); }, {"10", "3 rows of 784"});
}

}  // namespace
}  // namespace longship::data
