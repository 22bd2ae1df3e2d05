#include "data/stats_pass.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace longship::data {

const std::array<const char*, 5> kQuantileNames = {"q01", "q10", "q50", "q90", "q99"};

namespace {

constexpr int kDroppedBits = 12;  // of 32: 20 remain

// Order of the keys is the order of the numbers.
uint32_t bin_of(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const uint32_t key = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return key >> kDroppedBits;
}

float value_of_key(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

double middle_of(uint32_t bin) {
  const uint32_t low = bin << kDroppedBits;
  const auto a = static_cast<double>(value_of_key(low));
  const auto b = static_cast<double>(value_of_key(low | ((1U << kDroppedBits) - 1)));
  return 0.5 * (a + b);
}

// numpy.quantile over values given by their rank.
template <class AtRank>
double interpolated(double q, int64_t count, AtRank&& at_rank) {
  const double position = q * static_cast<double>(count - 1);
  const auto below = static_cast<int64_t>(position);
  const double low = at_rank(below);
  if (below + 1 >= count) return low;
  return low + (at_rank(below + 1) - low) * (position - static_cast<double>(below));
}

nlohmann::ordered_json nested(const std::vector<double>& values, int depth) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const double value : values) {
    nlohmann::ordered_json item = value;
    for (int level = 1; level < depth; ++level) item = nlohmann::ordered_json::array({item});
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace

void ValueSketch::add(double value) {
  const uint32_t bin = bin_of(value);
  std::unique_ptr<Page>& page = pages_[bin >> kPageBits];
  if (page == nullptr) page = std::make_unique<Page>();
  ++(*page)[bin & ((1U << kPageBits) - 1)];
  ++total_;
}

void ValueSketch::merge(const ValueSketch& other) {
  for (const auto& [number, theirs] : other.pages_) {
    std::unique_ptr<Page>& page = pages_[number];
    if (page == nullptr) page = std::make_unique<Page>();
    for (size_t i = 0; i < page->size(); ++i) (*page)[i] += (*theirs)[i];
  }
  total_ += other.total_;
}

double ValueSketch::at_rank(int64_t rank) const {
  int64_t seen = 0;
  for (const auto& [number, page] : pages_) {
    for (size_t i = 0; i < page->size(); ++i) {
      seen += (*page)[i];
      if (seen > rank) {
        return middle_of(number << kPageBits | static_cast<uint32_t>(i));
      }
    }
  }
  throw ShapeError("a rank beyond the values of a sketch was asked for");
}

StatsAccumulator::StatsAccumulator(int64_t width, bool exact) : width_(width), exact_(exact) {
  LS_CHECK(width > 0, ShapeError, "statistics of width {}", width);
  const auto w = static_cast<size_t>(width);
  min_.assign(w, 0);
  max_.assign(w, 0);
  mean_.assign(w, 0);
  squares_.assign(w, 0);
  exact ? values_.resize(w) : sketches_.resize(w);
}

void StatsAccumulator::add(std::span<const float> rows) {
  const std::vector<double> wide(rows.begin(), rows.end());
  add(wide);
}

void StatsAccumulator::add(std::span<const double> rows) {
  const auto w = static_cast<size_t>(width_);
  LS_CHECK(rows.size() % w == 0, ShapeError, "statistics: {} numbers are no rows of width {}",
           rows.size(), width_);
  StatsAccumulator part(width_, exact_);
  const size_t n = rows.size() / w;
  std::vector<size_t> finite;
  finite.reserve(n);
  for (size_t r = 0; r < n; ++r) {
    const auto row = rows.subspan(r * w, w);
    if (std::all_of(row.begin(), row.end(), [](double x) { return std::isfinite(x); })) {
      finite.push_back(r);
    }
  }
  part.count_ = static_cast<int64_t>(finite.size());
  part.skipped_ = static_cast<int64_t>(n - finite.size());
  for (size_t d = 0; d < w && !finite.empty(); ++d) {
    double low = rows[finite.front() * w + d], high = low, sum = 0;
    for (const size_t r : finite) {
      const double x = rows[r * w + d];
      low = std::min(low, x);
      high = std::max(high, x);
      sum += x;
    }
    part.min_[d] = low;
    part.max_[d] = high;
    part.mean_[d] = sum / static_cast<double>(finite.size());
    for (const size_t r : finite) {
      const double x = rows[r * w + d];
      part.squares_[d] += (x - part.mean_[d]) * (x - part.mean_[d]);
      exact_ ? part.values_[d].push_back(x) : part.sketches_[d].add(x);
    }
  }
  merge(std::move(part));
}

void StatsAccumulator::merge(StatsAccumulator&& other) {
  LS_CHECK(other.width_ == width_ && other.exact_ == exact_, ShapeError,
           "statistics of widths {} and {} are joined", width_, other.width_);
  skipped_ += other.skipped_;
  if (other.count_ == 0) return;
  const auto a = static_cast<double>(count_), b = static_cast<double>(other.count_);
  for (size_t d = 0; d < min_.size(); ++d) {
    min_[d] = count_ == 0 ? other.min_[d] : std::min(min_[d], other.min_[d]);
    max_[d] = count_ == 0 ? other.max_[d] : std::max(max_[d], other.max_[d]);
    const double delta = other.mean_[d] - mean_[d];
    mean_[d] = count_ == 0 ? other.mean_[d] : mean_[d] + delta * (b / (a + b));
    squares_[d] += other.squares_[d] + delta * delta * (a * b / (a + b));
    if (exact_) {
      values_[d].insert(values_[d].end(), other.values_[d].begin(), other.values_[d].end());
    } else {
      sketches_[d].merge(other.sketches_[d]);
    }
  }
  count_ += other.count_;
}

FullStats StatsAccumulator::result() {
  LS_CHECK(count_ > 0, ShapeError, "statistics of no rows");
  FullStats out;
  out.count = count_;
  out.skipped = skipped_;
  out.min = min_;
  out.max = max_;
  out.mean = mean_;
  for (size_t d = 0; d < min_.size(); ++d) {
    out.std.push_back(std::sqrt(squares_[d] / static_cast<double>(count_)));
    if (exact_) std::sort(values_[d].begin(), values_[d].end());
    for (size_t q = 0; q < FullStats::kQuantiles.size(); ++q) {
      const double value = interpolated(FullStats::kQuantiles[q], count_, [&](int64_t rank) {
        return exact_ ? values_[d][static_cast<size_t>(rank)] : sketches_[d].at_rank(rank);
      });
      out.quantiles[q].push_back(std::clamp(value, min_[d], max_[d]));
    }
  }
  return out;
}

void PixelStats::add(std::span<const uint8_t> rgb) {
  for (size_t i = 0; i + 2 < rgb.size(); i += 3) {
    ++counts_[0][rgb[i]];
    ++counts_[1][rgb[i + 1]];
    ++counts_[2][rgb[i + 2]];
  }
}

void PixelStats::merge(const PixelStats& other) {
  for (size_t c = 0; c < counts_.size(); ++c) {
    for (size_t v = 0; v < counts_[c].size(); ++v) counts_[c][v] += other.counts_[c][v];
  }
}

int64_t PixelStats::num_pixels() const {
  int64_t total = 0;
  for (const int64_t count : counts_[0]) total += count;
  return total;
}

FullStats PixelStats::result(int64_t num_frames) const {
  const int64_t total = num_pixels();
  LS_CHECK(total > 0, ShapeError, "statistics of no pixels");
  FullStats out;
  out.count = num_frames;
  for (const std::array<int64_t, 256>& counts : counts_) {
    double sum = 0, squares = 0;
    int low = 255, high = 0;
    for (int v = 0; v < 256; ++v) {
      const int64_t n = counts[static_cast<size_t>(v)];
      if (n == 0) continue;
      low = std::min(low, v);
      high = std::max(high, v);
      sum += static_cast<double>(n) * v;
    }
    const double mean = sum / static_cast<double>(total);
    for (int v = 0; v < 256; ++v) {
      squares += static_cast<double>(counts[static_cast<size_t>(v)]) * (v - mean) * (v - mean);
    }
    out.min.push_back(low / 255.0);
    out.max.push_back(high / 255.0);
    out.mean.push_back(mean / 255);
    out.std.push_back(std::sqrt(squares / static_cast<double>(total)) / 255);
    const auto at_rank = [&](int64_t rank) {
      int64_t seen = 0;
      for (int v = 0; v < 256; ++v) {
        seen += counts[static_cast<size_t>(v)];
        if (seen > rank) return static_cast<double>(v);
      }
      return 255.0;
    };
    for (size_t q = 0; q < FullStats::kQuantiles.size(); ++q) {
      out.quantiles[q].push_back(interpolated(FullStats::kQuantiles[q], total, at_rank) / 255);
    }
  }
  return out;
}

nlohmann::ordered_json stats_entry(const FullStats& stats, int depth) {
  nlohmann::ordered_json out;
  out["min"] = nested(stats.min, depth);
  out["max"] = nested(stats.max, depth);
  out["mean"] = nested(stats.mean, depth);
  if (!stats.std.empty()) out["std"] = nested(stats.std, depth);
  out["count"] = nlohmann::ordered_json::array({stats.count});
  for (size_t q = 0; q < kQuantileNames.size(); ++q) {
    if (!stats.quantiles[q].empty()) out[kQuantileNames[q]] = nested(stats.quantiles[q], depth);
  }
  return out;
}

}  // namespace longship::data
