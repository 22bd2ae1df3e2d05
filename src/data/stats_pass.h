#pragma once
// Statistics as LeRobot stores them, gathered part by part: exact where the values fit in memory,
// else with a sketch of stated error. The result does not depend on how the parts were spread over
// threads.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

namespace longship::data {

/// Per dimension, float64: population std, quantiles with linear interpolation (numpy.quantile).
struct FullStats {
  static constexpr std::array<double, 5> kQuantiles = {0.01, 0.10, 0.50, 0.90, 0.99};
  std::vector<double> min, max, mean, std;
  std::array<std::vector<double>, 5> quantiles;  // by kQuantiles
  int64_t count = 0;                             // rows
  int64_t skipped = 0;                           // rows left out for NaN or infinity
};

/// Names of the quantiles in LeRobot's files: q01, q10, q50, q90, q99.
extern const std::array<const char*, 5> kQuantileNames;

/// Counts of values by their leading 20 bits as float32 (sign, exponent, 11 bits of mantissa). A
/// quantile read from it differs from the exact one by at most 2^-12 of its size (0.025 %): the
/// ranks are exact, a value is known up to its bin. At most 8 MiB, in pages of those bins that
/// occur. Adding and merging in any order give the same.
class ValueSketch {
 public:
  void add(double value);
  void merge(const ValueSketch& other);
  /// Value of this rank (0 .. total-1), the middle of its bin.
  double at_rank(int64_t rank) const;
  int64_t total() const { return total_; }

 private:
  static constexpr int kPageBits = 10;
  using Page = std::array<int64_t, size_t{1} << kPageBits>;
  std::map<uint32_t, std::unique_ptr<Page>> pages_;  // by the leading bits of the bin
  int64_t total_ = 0;
};

/// Gathers rows of one width. Rows that hold NaN or infinity are counted and left out.
class StatsAccumulator {
 public:
  /// With `exact` every value is kept (8 bytes each), else quantiles come from a ValueSketch.
  StatsAccumulator(int64_t width, bool exact);
  /// rows [n, width], row-major. Mean and variance of the rows of one call are computed in two
  /// passes; calls are joined by Chan's formula in the order of calls and merges.
  void add(std::span<const double> rows);
  void add(std::span<const float> rows);
  /// Takes over what another one of the same width and kind gathered.
  void merge(StatsAccumulator&& other);
  int64_t count() const { return count_; }
  int64_t skipped() const { return skipped_; }
  /// Sorts what was kept. Throws ShapeError when no row was added.
  FullStats result();

 private:
  int64_t width_;
  bool exact_;
  int64_t count_ = 0, skipped_ = 0;
  std::vector<double> min_, max_, mean_, squares_;
  std::vector<std::vector<double>> values_;  // [width], exact only
  std::vector<ValueSketch> sketches_;        // [width], otherwise
};

/// Statistics of pictures of one camera, [0, 1] per channel, exact from counts of the 256 values.
class PixelStats {
 public:
  /// rgb: pixels [n, 3].
  void add(std::span<const uint8_t> rgb);
  void merge(const PixelStats& other);
  /// `count` is the number of frames, as LeRobot stores it.
  FullStats result(int64_t num_frames) const;
  int64_t num_pixels() const;

 private:
  std::array<std::array<int64_t, 256>, 3> counts_{};
};

/// One feature's entry of stats.json. `depth` 3 nests every number as LeRobot does for cameras:
/// [[[0.1]], [[0.2]], [[0.3]]].
nlohmann::ordered_json stats_entry(const FullStats& stats, int depth = 1);

}  // namespace longship::data
