// Single pictures: PNG exact, heads told without decoding, damage refused.

#include "io/video_still.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "io/video_png.h"

namespace longship::io {
namespace {

using ::testing::HasSubstr;

std::vector<uint8_t> noise(int64_t height, int64_t width) {
  std::vector<uint8_t> rgb(static_cast<size_t>(height * width * 3));
  uint32_t state = 1;
  for (uint8_t& value : rgb)
    value = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return rgb;
}

TEST(Still, PngIsExactAtOddSizes) {
  for (const auto& [height, width] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {47, 63}, {3, 1001}, {480, 640}}) {
    const std::vector<uint8_t> rgb = noise(height, width);
    const std::string png = encode_png(rgb, height, width);
    const StillFacts facts = still_facts(png, "a.png");
    EXPECT_EQ(facts.kind, "PNG");
    EXPECT_EQ(facts.height, height);
    EXPECT_EQ(facts.width, width);
    EXPECT_FALSE(facts.has_alpha);
    const Still still = decode_still(png, "a.png");
    EXPECT_EQ(still.height, height);
    EXPECT_EQ(still.rgb, rgb);
  }
}

TEST(Still, DamageIsRefusedWithTheName) {
  const std::string png = encode_png(noise(48, 64), 48, 64);
  const auto expect = [](const std::string& bytes, const char* text) {
    try {
      decode_still(bytes, "episode 1");
      ADD_FAILURE() << "decoded in spite of: " << text;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr("episode 1"));
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  };
  expect("", "neither PNG nor JPEG");
  expect("GIF89a", "neither PNG nor JPEG");
  expect(png.substr(0, 20), "cut");
  expect("\xff\xd8\xff\xe0", "cut");
  std::string flipped = png;
  for (size_t i = png.size() / 2; i < png.size() / 2 + 40; ++i) flipped[i] = '\x55';
  expect(flipped, "PNG");
  std::string deep = png;
  deep[24] = 16;
  expect(deep, "16 bits per channel");
}

}  // namespace
}  // namespace longship::io
