#pragma once
// The formula picture of tests/golden/groot_preprocess, and digests of pictures.

#include <string>
#include <string_view>

#include "base/sha256.h"
#include "data/sample.h"

namespace longship::testing {

inline data::Image formula_picture(int64_t h, int64_t w) {
  data::Image image{h, w, {}};
  image.rgb.reserve(static_cast<size_t>(h * w * 3));
  for (int64_t y = 0; y < h; ++y) {
    for (int64_t x = 0; x < w; ++x) {
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t v = 7 * x + 13 * y + 50 * c + x * y / 11 + 90 * ((x / 8 + y / 8) % 2);
        image.rgb.push_back(static_cast<uint8_t>(v % 256));
      }
    }
  }
  return image;
}

/// SHA-256 of the bytes, height x width x channel.
inline std::string full_digest(const data::Image& image) {
  return sha256_hex({reinterpret_cast<const char*>(image.rgb.data()), image.rgb.size()});
}
inline std::string digest(const data::Image& image) {
  return full_digest(image).substr(0, 16);
}

}  // namespace longship::testing
