#pragma once
// Normalisation of numeric features and its inverse, per dimension, in the arithmetic of the
// reference implementations.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

enum class NormMode {
  kQuantiles,  // q01 -> -1, q99 -> 1, not clipped
  kMeanStd,    // (x - mean) / std
  kMinMax,     // min -> -1, max -> 1
  kScale,      // x / max(|min|, |max|); LoongForge only
  kIdentity,
};

enum class NormFlavour {
  kLongship,  // no epsilon; a degenerate column becomes 0 on input and its constant on output
  kOpenpi,   // range + 1e-6, std + 1e-6; statistics cut to the row's width; wider rows pass through
             // on the way back
  kLerobot,  // a zero range becomes 1e-8 both ways; std + 1e-8 on the way in only
  kLoongforge,  // a zero range or std becomes 1e-8 on the way in only
};

/// "quantiles", "mean_std", "min_max", "scale", "identity"; "longship", "openpi", "lerobot",
/// "loongforge". Throw ConfigError.
NormMode parse_norm_mode(std::string_view name);
NormFlavour parse_norm_flavour(std::string_view name);
std::string_view norm_mode_name(NormMode mode);
std::string_view norm_flavour_name(NormFlavour flavour);

/// Immutable and thread-safe. Arithmetic in double, results rounded to float once.
class Normalizer {
 public:
  /// `feature` names the column in messages. `width` is the feature's width; statistics needed by
  /// `mode` must have that width and be finite, else DataError. kOpenpi has no kMinMax:
  /// ConfigError.
  Normalizer(std::string feature, NormMode mode, NormFlavour flavour, int64_t width,
             const FeatureStats& stats);

  int64_t width() const { return width_; }
  NormMode mode() const { return mode_; }
  const std::string& feature() const { return feature_; }

  /// One row; in and out may be the same memory. Row width must be width(), except kOpenpi:
  /// narrower rows use the first dimensions, and denormalise passes dimensions past width() through
  /// (kMeanStd multiplies them by 1+1e-6, as openpi does). Throws ShapeError otherwise.
  void normalise(std::span<const float> in, std::span<float> out) const;
  void denormalise(std::span<const float> in, std::span<float> out) const;

  /// Dimensions whose range or deviation is zero (to float32 rounding), ascending.
  const std::vector<int64_t>& degenerate() const { return degenerate_; }
  /// One sentence per degenerate or nearly constant column, for the log: name, index, value, what
  /// happens to it.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Dim {
    double sub = 0, mul = 1, add = 0;           // y = (x - sub) * mul + add
    double inv_add = 0, inv_mul = 1, base = 0;  // x = (y + inv_add) * inv_mul + base
  };
  void set_range(const FeatureStats& stats, const std::vector<double>& low,
                 const std::vector<double>& high);
  void set_mean_std(const FeatureStats& stats);
  void note_column(const FeatureStats& stats, int64_t i, double spread, double magnitude,
                   double constant);

  std::string feature_;
  NormMode mode_;
  NormFlavour flavour_;
  int64_t width_;
  std::vector<Dim> dims_;
  std::vector<int64_t> degenerate_;
  std::vector<std::string> notes_;
};

}  // namespace longship::data
