#include "data/image/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "data/golden_arrays.h"

namespace longship::data {
namespace {

using testing::array;

/// The picture fHxW of the golden case's formula.
Image formula_image(int64_t h, int64_t w) {
  Image image{h, w, {}};
  for (int64_t y = 0; y < h; ++y) {
    for (int64_t x = 0; x < w; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t v = (x * x + 3 * y * y + 5 * x * y + 40 * c * (x + 2 * y) + 71 * c + 17) >> 3;
        image.rgb.push_back(static_cast<uint8_t>(v & 255));
      }
    }
  }
  return image;
}

struct Grid {
  std::vector<int64_t> rows, cols;
};

std::vector<int64_t> steps(int64_t start, int64_t size, int64_t step) {
  std::vector<int64_t> v;
  for (int64_t i = start; i < size; i += step) v.push_back(i);
  return v;
}

class GoldenResize : public ::testing::TestWithParam<ResizeFlavour> {
 protected:
  static const io::SafetensorsFile& inputs() {
    static const auto file = testing::golden_tensors("pi05/preprocess/inputs.safetensors");
    return file;
  }
  static const io::SafetensorsFile& expected() {
    static const auto file = testing::golden_tensors("pi05/preprocess/expected.safetensors");
    return file;
  }
  static const nlohmann::json& facts() {
    static const nlohmann::json json = testing::golden_json("pi05/preprocess/expected.json");
    return json;
  }
  static Image picture(const std::string& key, const nlohmann::json& row) {
    const std::string name = key.substr(0, key.find('.'));
    const int64_t h = row["h"], w = row["w"];
    if (name[0] == 'f') return formula_image(h, w);
    return {h, w, array<uint8_t>(inputs(), "image." + name)};
  }
  static Grid grid(const nlohmann::json& row, const std::string& suffix) {
    const int64_t s = row["size"];
    const auto coarse = row["grid"] == "all" ? steps(0, s, 1) : steps(3, s, 7);
    const std::vector<int64_t> last = {s - 2, s - 1};
    if (suffix == ".last_rows") return {last, steps(3, s, 7)};
    if (suffix == ".last_cols") return {steps(3, s, 7), last};
    return {coarse, coarse};
  }
};

bool is_u8(ResizeFlavour flavour) {
  return flavour == ResizeFlavour::kOpenpiPil || flavour == ResizeFlavour::kTorchU8;
}

TEST_P(GoldenResize, MatchesTheReference) {
  const std::string mode(resize_flavour_name(GetParam()));
  int compared = 0;
  for (const auto& [key, row] : facts()["images"].items()) {
    SCOPED_TRACE(key);
    const Image image = picture(key, row);
    const int64_t s = row["size"];
    std::vector<float> chw(static_cast<size_t>(3 * s * s));
    resize_with_pad_chw(image, s, GetParam(), chw);
    std::vector<uint8_t> hwc(chw.size());
    if (is_u8(GetParam())) {
      resize_with_pad_u8(image, s, GetParam(), hwc);
      EXPECT_EQ(std::accumulate(hwc.begin(), hwc.end(), 0.0), row["sums"][mode].get<double>());
    } else {
      EXPECT_NEAR(std::accumulate(chw.begin(), chw.end(), 0.0), row["sums"][mode].get<double>(),
                  0.05);
    }
    for (const std::string suffix : {"", ".last_rows", ".last_cols"}) {
      const std::string name = key + "." + mode + suffix;
      if (expected().find(name) == nullptr) continue;
      const Grid g = grid(row, suffix);
      const auto bytes =
          is_u8(GetParam()) ? array<uint8_t>(expected(), name) : std::vector<uint8_t>();
      const auto floats = is_u8(GetParam()) ? std::vector<float>() : array<float>(expected(), name);
      ASSERT_EQ(std::max(bytes.size(), floats.size()), g.rows.size() * g.cols.size() * 3);
      size_t i = 0;
      float worst = 0;
      for (const int64_t y : g.rows) {
        for (const int64_t x : g.cols) {
          for (int64_t c = 0; c < 3; ++c, ++i) {
            if (is_u8(GetParam())) {
              ASSERT_EQ(hwc[static_cast<size_t>((y * s + x) * 3 + c)], bytes[i])
                  << name << " y " << y << " x " << x;
            } else {
              worst = std::max(worst,
                               std::abs(chw[static_cast<size_t>((c * s + y) * s + x)] - floats[i]));
            }
          }
        }
      }
      EXPECT_LE(worst, 3e-4F) << name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 20);
}

INSTANTIATE_TEST_SUITE_P(Flavours, GoldenResize,
                         ::testing::Values(ResizeFlavour::kOpenpiPil, ResizeFlavour::kTorch01,
                                           ResizeFlavour::kTorch11, ResizeFlavour::kTorchU8,
                                           ResizeFlavour::kJax11),
                         [](const auto& param) {
                           return std::string(resize_flavour_name(param.param));
                         });

TEST_F(GoldenResize, PlanMatchesSizesAndPads) {
  for (const auto& [key, row] : facts()["images"].items()) {
    SCOPED_TRACE(key);
    const PadPlan plan = plan_resize_with_pad(row["h"], row["w"], row["size"]);
    EXPECT_EQ(plan.resized_h, row["resized_h"].get<int64_t>());
    EXPECT_EQ(plan.resized_w, row["resized_w"].get<int64_t>());
    EXPECT_EQ(plan.top, row["pad_top"].get<int64_t>());
    EXPECT_EQ(plan.left, row["pad_left"].get<int64_t>());
  }
}

TEST_F(GoldenResize, PillowPictureIsCompleteIncludingTheBlackLastRow) {
  const Image image = formula_image(225, 225);
  std::vector<uint8_t> out(224 * 224 * 3);
  resize_with_pad_u8(image, 224, ResizeFlavour::kOpenpiPil, out);
  EXPECT_EQ(out, array<uint8_t>(expected(), "f225x225.to224.openpi_pil.full"));
}

TEST_F(GoldenResize, ModelInputOfOpenpiIsScaledToMinusOneOne) {
  for (const auto& [key, row] : facts()["images"].items()) {
    const int64_t s = row["size"];
    const auto want = array<float>(expected(), key + ".openpi_model_input");
    std::vector<float> chw(static_cast<size_t>(3 * s * s));
    resize_with_pad_chw(picture(key, row), s, ResizeFlavour::kOpenpiPil, chw);
    const Grid g = grid(row, "");
    size_t i = 0;
    for (const int64_t y : g.rows) {
      for (const int64_t x : g.cols) {
        for (int64_t c = 0; c < 3; ++c, ++i) {
          ASSERT_NEAR(chw[static_cast<size_t>((c * s + y) * s + x)], want[i], 1e-6) << key;
        }
      }
    }
  }
}

TEST(ResizePlan, LongSideLosesAPixelWhereTheReferencesDo) {
  int shorter = 0;
  for (int64_t w = 20; w < 2200; ++w) shorter += plan_resize_with_pad(w, w, 224).resized_w == 223;
  EXPECT_EQ(shorter, 185);
}

TEST(Resize, SameSizeIsACopyInEveryFlavour) {
  const Image image = formula_image(8, 8);
  for (const std::string& name : resize_flavour_names()) {
    std::vector<float> out(3 * 64);
    resize_with_pad_chw(image, 8, parse_resize_flavour(name), out);
    EXPECT_EQ(out[64 + 9], static_cast<float>(image.rgb[9 * 3 + 1]) / 255.0F * 2.0F - 1.0F) << name;
  }
}

TEST(Resize, OnePixelFillsTheSquareAndFlatPicturesStayFlat) {
  const Image one{1, 1, {0, 128, 255}};
  std::vector<uint8_t> out(5 * 5 * 3);
  resize_with_pad_u8(one, 5, ResizeFlavour::kOpenpiPil, out);
  for (size_t i = 0; i < out.size(); i += 3) {
    EXPECT_EQ((std::vector<uint8_t>{out[i], out[i + 1], out[i + 2]}),
              (std::vector<uint8_t>{0, 128, 255}));
  }
  const Image flat{17, 31, std::vector<uint8_t>(17 * 31 * 3, 200)};
  std::vector<float> chw(3 * 31 * 31);
  resize_with_pad_chw(flat, 31, ResizeFlavour::kJax11, chw);
  EXPECT_NEAR(chw[15 * 31 + 15], 200.0 / 255 * 2 - 1, 1e-6);
  EXPECT_EQ(chw[0], -1.0F);
}

TEST(Resize, ErrorsNameSizes) {
  std::vector<float> out(3 * 16);
  const auto message = [&](const Image& image) {
    try {
      resize_with_pad_chw(image, 4, ResizeFlavour::kOpenpiPil, out);
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(message({2, 2, {1, 2, 3}}).find("2x2 (height x width) holds 3 bytes, expected 12"),
            std::string::npos);
  EXPECT_NE(message({1, 4096, std::vector<uint8_t>(4096 * 3)}).find("1x4096"), std::string::npos);
  EXPECT_THROW(parse_resize_flavour("pillow"), ConfigError);
}

}  // namespace
}  // namespace longship::data
