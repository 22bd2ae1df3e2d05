#pragma once
// The pictures of the clips in fixtures/clips: bar codes as in the small datasets (see
// video_support.h) above a smooth area of colours that moves from frame to frame.

#include <cmath>
#include <cstdint>
#include <vector>

namespace longship::testing {

/// [height, width, 3] RGB.
inline std::vector<uint8_t> clip_picture(int frame, int width, int height) {
  std::vector<uint8_t> rgb(static_cast<size_t>(width * height * 3));
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      uint8_t* p = rgb.data() + 3 * (y * width + x);
      const int bit = x / (width / 8);
      if (y < 32) {
        const int code = y < 16 ? frame : 0x25;
        const bool white = bit < 8 && (code >> (7 - bit) & 1) != 0;
        p[0] = p[1] = p[2] = white ? 255 : 0;
        continue;
      }
      const double phase = 0.12 * frame;
      const auto level = [](double s) { return static_cast<uint8_t>(std::lround(128 + 96 * s)); };
      p[0] = level(std::sin(0.06 * x + phase));
      p[1] = level(std::sin(0.05 * (x + y) + 2 + phase));
      p[2] = level(std::cos(0.07 * y - phase));
    }
  }
  return rgb;
}

}  // namespace longship::testing
