#pragma once
// The bar codes in the pictures of the small test datasets: rows 0-15 show the frame number as
// eight blocks (most significant bit left, white = 1), rows 16-31 the camera (4 bits) and the
// episode (4 bits).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/video.h"
#include "support/paths.h"

namespace longship::testing {

struct BarCode {
  int frame = 0;
  int camera = 0;
  int episode = 0;
  double error = 0;  // mean difference to black and white inside the bars, in levels
};

inline BarCode read_bar_code(const std::vector<uint8_t>& rgb, int64_t width) {
  const int64_t block = width / 8;
  double error = 0;
  int codes[2] = {0, 0};
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t bit = 0; bit < 8; ++bit) {
      double sum = 0;
      for (int64_t y = 16 * row; y < 16 * row + 16; ++y) {
        for (int64_t i = 3 * (y * width + bit * block); i < 3 * (y * width + (bit + 1) * block);
             ++i) {
          sum += rgb[static_cast<size_t>(i)];
        }
      }
      const double mean = sum / static_cast<double>(16 * block * 3);
      codes[row] = codes[row] * 2 + (mean > 128 ? 1 : 0);
      error += (mean > 128 ? 255 - mean : mean) / 16;
    }
  }
  return {codes[0], codes[1] >> 4, codes[1] & 15, error};
}

inline std::vector<uint8_t> read_frame(io::VideoReader& reader, int64_t frame_idx) {
  std::vector<uint8_t> rgb(static_cast<size_t>(reader.info().width * reader.info().height * 3));
  reader.read_rgb(frame_idx, rgb.data());
  return rgb;
}

/// Frames in one pass; `wanted` rises.
inline std::vector<std::vector<uint8_t>> read_frames(io::VideoReader& reader,
                                                     const std::vector<int64_t>& wanted) {
  const auto bytes = static_cast<size_t>(reader.info().width * reader.info().height * 3);
  std::vector<std::vector<uint8_t>> out(wanted.size(), std::vector<uint8_t>(bytes));
  std::vector<uint8_t*> buffers;
  for (std::vector<uint8_t>& picture : out) buffers.push_back(picture.data());
  reader.read_rgb_each(wanted, buffers);
  return out;
}

/// A file of a case, from the case itself or from its base.
inline std::filesystem::path broken_file(const std::string& case_name, const std::string& base,
                                         const std::string& file) {
  const std::filesystem::path own = dataset_path("broken/cases") / case_name / "files" / file;
  return std::filesystem::exists(own) ? own : dataset_path("broken/" + base) / file;
}

}  // namespace longship::testing
