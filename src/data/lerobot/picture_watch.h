#pragma once
// Tells whether the pictures of an episode change, and whether they show anything.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace longship::data::lerobot {

/// Fed the pictures of one episode in order.
class PictureWatch {
 public:
  /// Two pictures are the same when no block of 8x8 pixels differs by more than this on average.
  /// What a lossy codec does to a still picture stays below; whatever moves through a block does
  /// not.
  static constexpr double kSameLevels = 2;
  /// Pictures with a shorter side are not judged: a few rows say nothing.
  static constexpr int64_t kSmallestSide = 32;
  /// A picture is black below this mean, with no block brighter than kBrightBlock.
  static constexpr double kBlackMean = 8;
  static constexpr double kBrightBlock = 24;
  /// Blocks of a picture of one colour lie within this of each other.
  static constexpr double kFlatLevels = 2;

  PictureWatch(int64_t height, int64_t width);
  /// rgb: [height, width, 3].
  void add(std::span<const uint8_t> rgb);

  bool is_judged() const { return std::min(height_, width_) >= kSmallestSide; }
  int64_t num_frames() const { return num_frames_; }
  int64_t num_black() const { return num_black_; }
  int64_t num_flat() const { return num_flat_; }
  /// The longest stretch of equal pictures: its first frame and its length.
  int64_t longest_begin() const { return longest_begin_; }
  int64_t longest() const { return longest_; }

 private:
  int64_t height_, width_, blocks_high_, blocks_wide_;
  std::vector<uint8_t> reference_;  // first picture of the stretch at hand
  int64_t num_frames_ = 0, num_black_ = 0, num_flat_ = 0;
  int64_t run_begin_ = 0;
  int64_t longest_begin_ = 0, longest_ = 0;
};

}  // namespace longship::data::lerobot
