#include "data/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace longship::data {
namespace {

constexpr std::array<std::string_view, 5> kModes = {"quantiles", "mean_std", "min_max", "scale",
                                                    "identity"};
constexpr std::array<std::string_view, 4> kFlavours = {"longship", "openpi", "lerobot",
                                                       "loongforge"};

constexpr double kOpenpiEps = 1e-6;
constexpr double kTinyEps = 1e-8;  // lerobot, LoongForge
// A spread below a few float32 steps of the values themselves carries no information; lerobot's
// histograms widen a constant column by 1e-10, hence the absolute floor.
constexpr double kDegenerateRelative = 4.0 * std::numeric_limits<float>::epsilon();
constexpr double kDegenerateAbsolute = 1e-9;
constexpr double kNearConstantRelative = 1e-4;

template <class E, size_t N>
E parse_word(std::string_view name, const std::array<std::string_view, N>& words,
             std::string_view what) {
  const auto it = std::find(words.begin(), words.end(), name);
  if (it != words.end()) return static_cast<E>(it - words.begin());
  std::string list;
  for (const auto word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  throw ConfigError(fmt::format("unknown {} '{}'; use one of {}", what, name, list));
}

void check_stat(const std::string& feature, const std::string& source, std::string_view name,
                const std::vector<double>& values, int64_t width) {
  const std::string place = source.empty() ? "the statistics" : source;
  LS_CHECK(!values.empty(), DataError,
           "{}: feature '{}' has no statistic '{}', which its normalisation needs", place, feature,
           name);
  LS_CHECK(static_cast<int64_t>(values.size()) == width, DataError,
           "{}: statistic '{}' of '{}' has {} numbers, the feature has {}; the statistics belong "
           "to another "
           "dataset: remove them to have them computed from the rows",
           place, name, feature, values.size(), width);
  for (int64_t i = 0; i < width; ++i) {
    LS_CHECK(std::isfinite(values[static_cast<size_t>(i)]), DataError,
             "{}: statistic '{}' of {}[{}] is {}", place, name, feature, i,
             values[static_cast<size_t>(i)]);
  }
}

bool is_degenerate(double spread, double magnitude) {
  return spread <= std::max(kDegenerateAbsolute, kDegenerateRelative * magnitude);
}

}  // namespace

NormMode parse_norm_mode(std::string_view name) {
  return parse_word<NormMode>(name, kModes, "normalisation mode");
}
NormFlavour parse_norm_flavour(std::string_view name) {
  return parse_word<NormFlavour>(name, kFlavours, "normalisation flavour");
}
std::string_view norm_mode_name(NormMode mode) {
  return kModes[static_cast<size_t>(mode)];
}
std::string_view norm_flavour_name(NormFlavour flavour) {
  return kFlavours[static_cast<size_t>(flavour)];
}

Normalizer::Normalizer(std::string feature, NormMode mode, NormFlavour flavour, int64_t width,
                       const FeatureStats& stats)
    : feature_(std::move(feature)), mode_(mode), flavour_(flavour), width_(width) {
  LS_CHECK(width > 0, DataError, "feature '{}' has width {}", feature_, width);
  dims_.resize(static_cast<size_t>(width));
  LS_CHECK(!(mode == NormMode::kMinMax && flavour == NormFlavour::kOpenpi), ConfigError,
           "normalisation of '{}': openpi has no min_max mode; use quantiles or mean_std, or "
           "another flavour",
           feature_);
  LS_CHECK(!(mode == NormMode::kScale && flavour != NormFlavour::kLoongforge), ConfigError,
           "normalisation of '{}': mode scale exists in the loongforge flavour only, not in {}",
           feature_, norm_flavour_name(flavour));
  if (mode == NormMode::kIdentity) return;
  if (mode == NormMode::kQuantiles) {
    check_stat(feature_, stats.source, "q01", stats.q01, width);
    check_stat(feature_, stats.source, "q99", stats.q99, width);
    set_range(stats, stats.q01, stats.q99);
  } else if (mode == NormMode::kMeanStd) {
    check_stat(feature_, stats.source, "mean", stats.mean, width);
    check_stat(feature_, stats.source, "std", stats.std, width);
    set_mean_std(stats);
  } else {
    check_stat(feature_, stats.source, "min", stats.min, width);
    check_stat(feature_, stats.source, "max", stats.max, width);
    set_range(stats, stats.min, stats.max);
  }
}

void Normalizer::set_range(const FeatureStats& stats, const std::vector<double>& low,
                           const std::vector<double>& high) {
  for (int64_t i = 0; i < width_; ++i) {
    const double lo = low[static_cast<size_t>(i)];
    const double hi = high[static_cast<size_t>(i)];
    LS_CHECK(hi >= lo, DataError, "{}: the upper bound {} of {}[{}] is below the lower bound {}",
             stats.source, hi, feature_, i, lo);
    Dim& d = dims_[static_cast<size_t>(i)];
    const double magnitude = std::max(std::abs(lo), std::abs(hi));
    if (mode_ == NormMode::kScale) {
      const double scale = magnitude == 0 ? kTinyEps : magnitude;
      d = {0, 1 / scale, 0, 0, magnitude, 0};
      continue;
    }
    double range = hi - lo;
    double inverse_range = range;
    if (flavour_ == NormFlavour::kLongship) {
      note_column(stats, i, range, magnitude, lo);
      if (is_degenerate(range, magnitude)) {
        d = {0, 0, 0, 0, 0, lo};
        continue;
      }
    } else if (flavour_ == NormFlavour::kOpenpi) {
      range += kOpenpiEps;
      inverse_range = range;
    } else if (range == 0) {
      range = kTinyEps;
      if (flavour_ == NormFlavour::kLerobot) inverse_range = kTinyEps;
    }
    d = {lo, 2 / range, -1, 1, inverse_range / 2, lo};
  }
}

void Normalizer::set_mean_std(const FeatureStats& stats) {
  for (int64_t i = 0; i < width_; ++i) {
    const double mean = stats.mean[static_cast<size_t>(i)];
    double std = stats.std[static_cast<size_t>(i)];
    LS_CHECK(std >= 0, DataError, "{}: std of {}[{}] is {}, below zero", stats.source, feature_, i,
             std);
    double inverse_std = std;
    Dim& d = dims_[static_cast<size_t>(i)];
    if (flavour_ == NormFlavour::kLongship) {
      note_column(stats, i, std, std::abs(mean), mean);
      if (is_degenerate(std, std::abs(mean))) {
        d = {0, 0, 0, 0, 0, mean};
        continue;
      }
    } else if (flavour_ == NormFlavour::kOpenpi) {
      std += kOpenpiEps;
      inverse_std = std;
    } else if (flavour_ == NormFlavour::kLerobot) {
      std += kTinyEps;
    } else if (std == 0) {
      std = kTinyEps;
    }
    d = {mean, 1 / std, 0, 0, inverse_std, mean};
  }
}

void Normalizer::note_column(const FeatureStats& stats, int64_t i, double spread, double magnitude,
                             double constant) {
  const bool degenerate = is_degenerate(spread, magnitude);
  if (degenerate) degenerate_.push_back(i);
  const std::string column = fmt::format("{}[{}]", feature_, i);
  const auto at = [&](const std::vector<double>& v) { return v[static_cast<size_t>(i)]; };
  const bool has_range = static_cast<int64_t>(stats.min.size()) == width_ &&
                         static_cast<int64_t>(stats.max.size()) == width_;
  if (degenerate && has_range && !is_degenerate(at(stats.max) - at(stats.min), magnitude)) {
    notes_.push_back(fmt::format(
        "{} is {} in nearly all rows but ranges from {} to {}: under {} it becomes 0 on input and "
        "{} on output, and "
        "the rare values are lost; min_max keeps them",
        column, constant, at(stats.min), at(stats.max), norm_mode_name(mode_), constant));
  } else if (degenerate) {
    notes_.push_back(
        fmt::format("{} is constant ({}): it becomes 0 on input and {} again on output", column,
                    constant, constant));
  } else if (spread < kNearConstantRelative * magnitude) {
    notes_.push_back(fmt::format(
        "{} is nearly constant (spread {:.3g} around {:.6g}): the normalised values magnify tiny "
        "differences {:.3g} times; check that the column is meant to be used",
        column, spread, constant, 1 / spread));
  }
}

void Normalizer::normalise(std::span<const float> in, std::span<float> out) const {
  LS_CHECK(in.size() == out.size(), ShapeError, "normalise '{}': {} numbers in, {} out", feature_,
           in.size(), out.size());
  const auto n = static_cast<int64_t>(in.size());
  LS_CHECK(n == width_ || (flavour_ == NormFlavour::kOpenpi && n < width_), ShapeError,
           "normalise '{}': the row has {} numbers, the statistics {}", feature_, n, width_);
  if (mode_ == NormMode::kIdentity) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    const Dim& d = dims_[i];
    out[i] = static_cast<float>((static_cast<double>(in[i]) - d.sub) * d.mul + d.add);
  }
}

void Normalizer::denormalise(std::span<const float> in, std::span<float> out) const {
  LS_CHECK(in.size() == out.size(), ShapeError, "denormalise '{}': {} numbers in, {} out", feature_,
           in.size(), out.size());
  const auto n = static_cast<int64_t>(in.size());
  LS_CHECK(n == width_ || flavour_ == NormFlavour::kOpenpi, ShapeError,
           "denormalise '{}': the row has {} numbers, the statistics {}", feature_, n, width_);
  if (mode_ == NormMode::kIdentity) {
    std::copy(in.begin(), in.end(), out.begin());
    return;
  }
  const double beyond = mode_ == NormMode::kMeanStd ? 1 + kOpenpiEps : 1;
  for (size_t i = 0; i < in.size(); ++i) {
    const auto y = static_cast<double>(in[i]);
    if (i >= dims_.size()) {
      out[i] = static_cast<float>(y * beyond);
      continue;
    }
    const Dim& d = dims_[i];
    out[i] = static_cast<float>((y + d.inv_add) * d.inv_mul + d.base);
  }
}

}  // namespace longship::data
