#pragma once
// Statistics of numeric features: exact ones from rows, and openpi's streaming estimate.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

/// openpi's RunningStats: mean and mean of squares, and 5000-bin histograms per dimension whose
/// edges are re-made (all dimensions) when any range grows; a quantile is the left edge of the bin
/// that reaches q*count.
class RunningStats {
 public:
  static constexpr int64_t kBins = 5000;
  explicit RunningStats(int64_t width);
  /// rows [n, width] row-major, n >= 1. Throws ShapeError.
  void update(std::span<const float> rows);
  /// Needs at least two rows (as upstream). Throws ShapeError.
  FeatureStats result() const;

 private:
  void regrow();
  void count(std::span<const float> rows, int64_t n);
  double quantile(int64_t dim, double q) const;

  int64_t width_;
  int64_t count_ = 0;
  std::vector<double> mean_, mean_sq_, min_, max_;
  std::vector<std::vector<double>> histograms_;  // [width][kBins]
  std::vector<std::vector<double>> edges_;       // [width][kBins + 1]
};

/// numpy.quantile with linear interpolation over sorted values, 0 <= q <= 1.
double sorted_quantile(std::span<const float> sorted, double q);

/// All statistics of rows [n, width], n >= 1, in float64: population std (divided by n), linear
/// quantiles. NaN or Inf throws DataError with `source`, row and dimension.
FeatureStats exact_stats(std::span<const float> rows, int64_t width, const std::string& source);

/// The same over every frame of a dataset, reading one column and no video.
FeatureStats compute_stats(const Dataset& dataset, const std::string& column);

/// The dataset's own statistics of a column with missing ones (of those in `need`: "q01", "q99",
/// "mean", "std", "min", "max") computed from the rows. Present ones stay as they are; minimum and
/// maximum never stand in for quantiles. A present statistic of the wrong width throws DataError.
/// Each recomputation is logged once.
FeatureStats completed_stats(const Dataset& dataset, const std::string& column,
                             const std::vector<std::string>& need);

}  // namespace longship::data
