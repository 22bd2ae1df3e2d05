#include "base/chart_axis.h"

#include <fmt/core.h>

#include <array>

namespace longship::chart {

namespace {

// The smallest of 1, 2, 5 times a power of ten that is not below `least`.
double round_step(double least) {
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

Axis::Axis(Range data, std::optional<double> min, std::optional<double> max, bool log, double pad)
    : log_(log), empty_(data.empty()) {
  if (empty_) data = log ? Range{0.1, 1} : Range{0, 1};
  low_ = scaled(min.value_or(data.min));
  high_ = scaled(max.value_or(data.max));
  if (!std::isfinite(low_) || !std::isfinite(high_) || low_ > high_) {
    low_ = 0;
    high_ = 1;
  }
  // A flat line goes through the middle.
  const double smallest = std::max(std::abs(low_), std::abs(high_)) * 1e-9;
  if (high_ - low_ <= smallest) {
    const double half = log ? 0.5 : std::max(std::abs(high_) * 0.1, 0.5e-6);
    low_ -= half;
    high_ += high_ == 0 && !log ? 1 : half;
    return;
  }
  const double extra = (high_ - low_) * pad;
  if (!min) low_ -= extra;
  if (!max) high_ += extra;
  // Values that are never negative get no negative ticks.
  if (!log && !min && data.min >= 0) low_ = std::max(low_, 0.0);
}

void Axis::choose_ticks(double pixels, double unit, bool horizontal) {
  // Vertical labels want a free line between them; horizontal ones are checked by their real width
  // below.
  const double spacing = horizontal ? unit * 5 : unit * 2.2;
  const auto most = static_cast<int64_t>(std::clamp(pixels / spacing, 2.0, 10.0));
  if (log_) {
    log_ticks(most);
    return;
  }
  // A tick more than wished for is better than half as many.
  double step = round_step(0.87 * (high_ - low_) / static_cast<double>(most));
  for (int attempt = 0; attempt < 8; ++attempt) {
    linear_ticks(step);
    size_t widest = 0;
    for (const double tick : ticks_) widest = std::max(widest, label(tick).size());
    const double gap = step / (high_ - low_) * pixels;
    if (!horizontal || gap >= static_cast<double>(widest + 2) * unit) return;
    step = round_step(step * 1.5);
  }
}

void Axis::linear_ticks(double step) {
  step_ = step;
  ticks_.clear();
  minor_.clear();
  const double slack = (high_ - low_) * 1e-9;
  for (double i = std::ceil((low_ - slack) / step); i * step <= high_ + slack; i += 1) {
    ticks_.push_back(i == 0 ? 0 : i * step);
  }
}

void Axis::log_ticks(int64_t max_ticks) {
  ticks_.clear();
  minor_.clear();
  decades_ = high_ - low_ > 1.3;
  const auto first = static_cast<int64_t>(std::floor(low_));
  const auto last = static_cast<int64_t>(std::ceil(high_));
  const int64_t every = std::max<int64_t>(1, (last - first + max_ticks - 1) / max_ticks);
  if (!decades_) {
    // Less than about a decade: linear round values read best, placed at their logarithms.
    const double from = std::pow(10.0, low_), to = std::pow(10.0, high_);
    const double step =
        round_step((to - from) / static_cast<double>(std::min<int64_t>(max_ticks, 6)));
    step_ = step;
    for (double i = std::ceil(from / step * (1 - 1e-9)); i * step <= to * (1 + 1e-9); i += 1) {
      if (i > 0) ticks_.push_back(i * step);
    }
    return;
  }
  for (int64_t decade = first; decade <= last; ++decade) {
    for (int64_t digit = 1; digit <= 9; ++digit) {
      const double value = static_cast<double>(digit) * std::pow(10.0, static_cast<double>(decade));
      const double at = std::log10(value);
      if (at < low_ - 1e-9 || at > high_ + 1e-9) continue;
      const bool major = digit == 1 && (decade - first) % every == 0;
      // Two and five are worth a label where few decades are shown.
      const bool labelled =
          every == 1 && (last - first) * 3 <= max_ticks && (digit == 2 || digit == 5);
      if (major || labelled) {
        ticks_.push_back(value);
      } else if (every == 1) {
        minor_.push_back(value);
      }
    }
  }
}

std::string Axis::label(double tick) const {
  if (tick == 0) return "0";
  const double magnitude = std::abs(tick);
  if (log_ && decades_) {
    return magnitude >= 1e-3 && magnitude < 1e4 ? fmt::format("{:g}", tick)
                                                : fmt::format("{:.0e}", tick);
  }
  const double largest = log_ ? std::pow(10.0, high_) : std::max(std::abs(low_), std::abs(high_));
  struct Scale {
    double factor;
    const char* suffix;
  };
  constexpr std::array<Scale, 4> kScales = {Scale{1e9, "G"}, Scale{1e6, "M"}, Scale{1e3, "k"},
                                            Scale{1, ""}};
  if (largest < 1e-3 || largest >= 1e13) return fmt::format("{:.3g}", tick);
  for (const Scale& s : kScales) {
    // Up to four digits are easier to read as they are.
    if (s.factor > 1 && largest < (s.factor == 1e3 ? 1e4 : s.factor)) continue;
    // Just enough digits to tell neighbouring ticks apart.
    const double unit = step_ / s.factor;
    const int digits =
        unit >= 1 ? (std::abs(unit - std::round(unit)) > 1e-9 ? 1 : 0)
                  : static_cast<int>(std::clamp(std::ceil(-std::log10(unit) - 1e-9), 0.0, 9.0));
    return fmt::format("{:.{}f}{}", tick / s.factor, digits, s.suffix);
  }
  return fmt::format("{:g}", tick);
}

}  // namespace longship::chart
