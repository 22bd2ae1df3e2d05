#include "data/stats.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace longship::data {
namespace {

/// numpy.linspace of two float32 numbers under NumPy 2: all arithmetic in float32, start + i*step,
/// the last one exactly `stop`. The quantiles are edges, so this rounding decides which bin is
/// reached.
std::vector<double> linspace(float start, float stop, int64_t n) {
  std::vector<double> v(static_cast<size_t>(n));
  const float step = (stop - start) / static_cast<float>(n - 1);
  for (int64_t i = 0; i < n; ++i) {
    const float offset = static_cast<float>(i) * step;
    v[static_cast<size_t>(i)] = static_cast<double>(offset + start);
  }
  v.back() = static_cast<double>(stop);
  return v;
}

/// Bin of numpy.histogram: [e_i, e_i+1), the last one closed; -1 outside.
int64_t bin_of(const std::vector<double>& edges, double x) {
  const auto bins = static_cast<int64_t>(edges.size()) - 1;
  const int64_t i = std::upper_bound(edges.begin(), edges.end(), x) - edges.begin() - 1;
  if (i < bins) return i;
  return x == edges.back() ? bins - 1 : -1;
}

int64_t checked_rows(std::span<const float> rows, int64_t width) {
  LS_CHECK(width > 0 && !rows.empty() && static_cast<int64_t>(rows.size()) % width == 0, ShapeError,
           "statistics: {} numbers are no rows of width {}", rows.size(), width);
  return static_cast<int64_t>(rows.size()) / width;
}

}  // namespace

RunningStats::RunningStats(int64_t width) : width_(width) {
  LS_CHECK(width > 0, ShapeError, "statistics of width {}", width);
  const auto w = static_cast<size_t>(width);
  mean_.assign(w, 0);
  mean_sq_.assign(w, 0);
  min_.assign(w, 0);
  max_.assign(w, 0);
  histograms_.assign(w, std::vector<double>(kBins, 0));
  edges_.resize(w);
}

void RunningStats::update(std::span<const float> rows) {
  const int64_t n = checked_rows(rows, width_);
  const auto w = static_cast<size_t>(width_);
  std::vector<double> low(rows.begin(), rows.begin() + width_);
  std::vector<double> high = low;
  std::vector<double> sum(w, 0), sum_sq(w, 0);
  for (size_t k = 0; k < rows.size(); ++k) {
    const size_t i = k % w;
    const auto x = static_cast<double>(rows[k]);
    sum[i] += x;
    sum_sq[i] += x * x;
    low[i] = std::min(low[i], x);
    high[i] = std::max(high[i], x);
  }
  bool grew = false;
  if (count_ == 0) {
    min_ = low;
    max_ = high;
    for (size_t i = 0; i < w; ++i)
      edges_[i] = linspace(static_cast<float>(min_[i]) - 1e-10F,
                           static_cast<float>(max_[i]) + 1e-10F, kBins + 1);
  } else {
    for (size_t i = 0; i < w; ++i) {
      grew = grew || low[i] < min_[i] || high[i] > max_[i];
      min_[i] = std::min(min_[i], low[i]);
      max_[i] = std::max(max_[i], high[i]);
    }
  }
  if (grew) regrow();
  count_ += n;
  const double share = static_cast<double>(n) / static_cast<double>(count_);
  for (size_t i = 0; i < w; ++i) {
    mean_[i] += (sum[i] / static_cast<double>(n) - mean_[i]) * share;
    mean_sq_[i] += (sum_sq[i] / static_cast<double>(n) - mean_sq_[i]) * share;
  }
  count(rows, n);
}

void RunningStats::regrow() {
  for (size_t i = 0; i < edges_.size(); ++i) {
    std::vector<double> edges =
        linspace(static_cast<float>(min_[i]), static_cast<float>(max_[i]), kBins + 1);
    std::vector<double> histogram(kBins, 0);
    for (size_t b = 0; b < static_cast<size_t>(kBins); ++b) {
      if (histograms_[i][b] == 0) continue;
      const int64_t target = bin_of(edges, edges_[i][b]);
      if (target >= 0) histogram[static_cast<size_t>(target)] += histograms_[i][b];
    }
    histograms_[i] = std::move(histogram);
    edges_[i] = std::move(edges);
  }
}

void RunningStats::count(std::span<const float> rows, int64_t n) {
  for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
    for (size_t i = 0; i < edges_.size(); ++i) {
      const int64_t bin = bin_of(edges_[i], static_cast<double>(rows[r * edges_.size() + i]));
      if (bin >= 0) histograms_[i][static_cast<size_t>(bin)] += 1;
    }
  }
}

double RunningStats::quantile(int64_t dim, double q) const {
  const auto& histogram = histograms_[static_cast<size_t>(dim)];
  const double target = q * static_cast<double>(count_);
  double sum = 0;
  size_t bin = 0;
  for (; bin < histogram.size(); ++bin) {
    sum += histogram[bin];
    if (sum >= target) break;
  }
  return edges_[static_cast<size_t>(dim)][bin];
}

FeatureStats RunningStats::result() const {
  LS_CHECK(count_ >= 2, ShapeError, "running statistics need at least 2 rows, they have {}",
           count_);
  FeatureStats s;
  s.count = count_;
  s.source = "running statistics";
  s.min = min_;
  s.max = max_;
  s.mean = mean_;
  for (int64_t i = 0; i < width_; ++i) {
    const auto k = static_cast<size_t>(i);
    s.std.push_back(std::sqrt(std::max(0.0, mean_sq_[k] - mean_[k] * mean_[k])));
    s.q01.push_back(quantile(i, 0.01));
    s.q99.push_back(quantile(i, 0.99));
  }
  return s;
}

double sorted_quantile(std::span<const float> sorted, double q) {
  LS_CHECK(!sorted.empty() && q >= 0 && q <= 1, ShapeError, "quantile {} of {} values", q,
           sorted.size());
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<size_t>(position);
  const auto low = static_cast<double>(sorted[i]);
  if (i + 1 >= sorted.size()) return low;
  return low + (static_cast<double>(sorted[i + 1]) - low) * (position - static_cast<double>(i));
}

FeatureStats exact_stats(std::span<const float> rows, int64_t width, const std::string& source) {
  const int64_t n = checked_rows(rows, width);
  FeatureStats s;
  s.count = n;
  s.source = source;
  std::vector<float> column(static_cast<size_t>(n));
  for (int64_t i = 0; i < width; ++i) {
    double sum = 0;
    for (int64_t r = 0; r < n; ++r) {
      const float x = rows[static_cast<size_t>(r * width + i)];
      LS_CHECK(std::isfinite(x), DataError,
               "{}: row {} dimension {} is {}; statistics need finite numbers", source, r, i, x);
      column[static_cast<size_t>(r)] = x;
      sum += static_cast<double>(x);
    }
    std::sort(column.begin(), column.end());
    const double mean = sum / static_cast<double>(n);
    double squares = 0;
    for (const float x : column)
      squares += (static_cast<double>(x) - mean) * (static_cast<double>(x) - mean);
    s.mean.push_back(mean);
    s.std.push_back(std::sqrt(squares / static_cast<double>(n)));
    s.min.push_back(static_cast<double>(column.front()));
    s.max.push_back(static_cast<double>(column.back()));
    s.q01.push_back(sorted_quantile(column, 0.01));
    s.q99.push_back(sorted_quantile(column, 0.99));
  }
  return s;
}

FeatureStats compute_stats(const Dataset& dataset, const std::string& column) {
  const Feature* feature = dataset.find_feature(column);
  LS_CHECK(feature != nullptr && feature->kind == FeatureKind::kNumeric, DataError,
           "{}: statistics of '{}' were asked, which is no numeric feature of this dataset",
           dataset.root().string(), column);
  WindowSpec windows;
  windows.columns[column] = {0};
  const int64_t width = feature->width();
  std::vector<float> rows;
  rows.reserve(static_cast<size_t>(dataset.size() * width));
  for (int64_t id = 0; id < dataset.size(); ++id) {
    const RawSample sample = dataset.get_columns(id, windows);
    const auto& values = sample.columns.at(column).values;
    LS_CHECK(static_cast<int64_t>(values.size()) == width, DataError,
             "{}: '{}' of episode {} frame {} has {} numbers, expected {}", dataset.root().string(),
             column, sample.episode, sample.frame, values.size(), width);
    rows.insert(rows.end(), values.begin(), values.end());
  }
  LS_CHECK(!rows.empty(), DataError,
           "{}: the dataset has no samples to compute statistics of '{}' from",
           dataset.root().string(), column);
  return exact_stats(rows, width,
                     dataset.root().string() + " '" + column + "' (computed from rows)");
}

FeatureStats completed_stats(const Dataset& dataset, const std::string& column,
                             const std::vector<std::string>& need) {
  const Feature* feature = dataset.find_feature(column);
  const auto it = dataset.stats().find(column);
  FeatureStats stats = it == dataset.stats().end() ? FeatureStats{} : it->second;
  const auto member = [](FeatureStats& s, const std::string& name) -> std::vector<double>& {
    if (name == "q01") return s.q01;
    if (name == "q99") return s.q99;
    if (name == "mean") return s.mean;
    if (name == "std") return s.std;
    if (name == "min") return s.min;
    LS_CHECK(name == "max", InternalError, "no statistic '{}'", name);
    return s.max;
  };
  std::string missing;
  for (const std::string& name : need) {
    const std::vector<double>& values = member(stats, name);
    if (values.empty()) missing += (missing.empty() ? "" : ", ") + name;
    LS_CHECK(values.empty() || feature == nullptr ||
                 static_cast<int64_t>(values.size()) == feature->width(),
             DataError,
             "{}: statistic '{}' of '{}' has {} numbers, the feature has {}; the statistics belong "
             "to another dataset: "
             "remove them to have them computed from the rows",
             stats.source.empty() ? dataset.root().string() : stats.source, name, column,
             values.size(), feature == nullptr ? 0 : feature->width());
  }
  if (missing.empty()) return stats;
  FeatureStats computed = compute_stats(dataset, column);
  log::info("{}: {} of '{}' computed from {} rows, because the dataset does not state them",
            dataset.root().string(), missing, column, computed.count);
  if (stats.source.empty()) return computed;
  for (const char* name : {"q01", "q99", "mean", "std", "min", "max"}) {
    std::vector<double>& values = member(stats, name);
    if (values.empty()) values = member(computed, name);
  }
  stats.source += " and rows";
  if (stats.count == 0) stats.count = computed.count;
  return stats;
}

}  // namespace longship::data
