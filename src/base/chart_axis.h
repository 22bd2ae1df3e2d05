#pragma once
// Scales and round tick values of svg_chart. Internal to base.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace longship::chart {

struct Range {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  bool empty() const { return min > max; }
  void add(double value, bool positive_only) {
    if (!std::isfinite(value) || (positive_only && value <= 0)) return;
    min = std::min(min, value);
    max = std::max(max, value);
  }
};

class Axis {
 public:
  Axis() = default;
  /// `pad` is the share of the range added at both ends unless that end is given.
  Axis(Range data, std::optional<double> min, std::optional<double> max, bool log, double pad);
  /// Position between the ends of the axis, 0 to 1 inside.
  double fraction(double value) const { return (scaled(value) - low_) / (high_ - low_); }
  /// As many round ticks as fit into `pixels` when a label's letter (horizontal) or line (vertical)
  /// has `unit` pixels.
  void choose_ticks(double pixels, double unit, bool horizontal);
  const std::vector<double>& ticks() const { return ticks_; }
  const std::vector<double>& minor_ticks() const { return minor_; }
  /// "0.25", "12k", "3.5M", "1e-05".
  std::string label(double tick) const;
  bool empty() const { return empty_; }

 private:
  double scaled(double value) const { return log_ ? std::log10(value) : value; }
  void linear_ticks(double step);
  void log_ticks(int64_t max_ticks);

  double low_ = 0, high_ = 1;  // in scaled units
  bool log_ = false, empty_ = true;
  double step_ = 1;
  bool decades_ = false;  // log ticks at powers of ten only
  std::vector<double> ticks_, minor_;
};

}  // namespace longship::chart
