#include "data/lerobot/picture_watch.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace longship::data::lerobot {

namespace {

constexpr int64_t kBlock = 8;

}  // namespace

PictureWatch::PictureWatch(int64_t height, int64_t width)
    : height_(height),
      width_(width),
      blocks_high_((height + kBlock - 1) / kBlock),
      blocks_wide_((width + kBlock - 1) / kBlock) {}

void PictureWatch::add(std::span<const uint8_t> rgb) {
  const bool first = reference_.empty();
  const auto num_blocks = static_cast<size_t>(blocks_high_ * blocks_wide_);
  std::vector<int64_t> change(num_blocks), size(num_blocks);
  std::vector<std::array<int64_t, 3>> sum(num_blocks);
  for (int64_t y = 0; y < height_; ++y) {
    const uint8_t* row = rgb.data() + y * width_ * 3;
    const uint8_t* before = first ? row : reference_.data() + y * width_ * 3;
    for (int64_t bx = 0; bx < blocks_wide_; ++bx) {
      const auto block = static_cast<size_t>(y / kBlock * blocks_wide_ + bx);
      const int64_t begin = bx * kBlock * 3, end = std::min((bx + 1) * kBlock, width_) * 3;
      int64_t difference = 0, red = 0, green = 0, blue = 0;
      for (int64_t i = begin; i < end; i += 3) {
        difference += std::abs(row[i] - before[i]) + std::abs(row[i + 1] - before[i + 1]) +
                      std::abs(row[i + 2] - before[i + 2]);
        red += row[i];
        green += row[i + 1];
        blue += row[i + 2];
      }
      change[block] += difference;
      sum[block][0] += red;
      sum[block][1] += green;
      sum[block][2] += blue;
      size[block] += (end - begin) / 3;
    }
  }
  double brightest = 0, total = 0, largest_change = 0;
  std::array<double, 3> low = {255, 255, 255}, high = {0, 0, 0};
  for (size_t block = 0; block < num_blocks; ++block) {
    const auto n = static_cast<double>(size[block]);
    double level = 0;
    for (size_t c = 0; c < 3; ++c) {
      const double mean = static_cast<double>(sum[block][c]) / n;
      low[c] = std::min(low[c], mean);
      high[c] = std::max(high[c], mean);
      level += mean / 3;
      total += static_cast<double>(sum[block][c]);
    }
    brightest = std::max(brightest, level);
    largest_change = std::max(largest_change, static_cast<double>(change[block]) / (3 * n));
  }
  const double mean = total / static_cast<double>(3 * height_ * width_);
  const bool black = mean < kBlackMean && brightest < kBrightBlock;
  bool flat = true;
  for (size_t c = 0; c < 3; ++c) flat = flat && high[c] - low[c] <= kFlatLevels;
  if (black) ++num_black_;
  if (flat && !black) ++num_flat_;
  if (first || largest_change > kSameLevels) {
    reference_.assign(rgb.begin(), rgb.end());
    run_begin_ = num_frames_;
  }
  ++num_frames_;
  if (num_frames_ - run_begin_ > longest_) {
    longest_ = num_frames_ - run_begin_;
    longest_begin_ = run_begin_;
  }
}

}  // namespace longship::data::lerobot
