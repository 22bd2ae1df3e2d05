// Exact statistics of action chunks in bounded memory. A quantile is one or two order statistics;
// they are found by their bits: the first pass counts values by the upper 16 bits of an
// order-preserving code, the second counts the lower 16 bits of the few codes that matter.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "data/delta_actions.h"

namespace longship::data {
namespace {

constexpr size_t kBuckets = size_t{1} << 16;

/// Unsigned codes in the order of the floats; -0 counts as 0.
uint32_t code_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value == 0.0F ? 0.0F : value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

float value_of(uint32_t code) {
  return std::bit_cast<float>((code & 0x80000000U) != 0 ? code & 0x7FFFFFFFU : ~code);
}

/// Finds order statistics (0-based ranks) of one dimension.
class RankFinder {
 public:
  RankFinder() : upper_(kBuckets, 0) {}
  void count(float value) { ++upper_[code_of(value) >> 16]; }
  /// After all of count(): which buckets the second pass has to look into.
  void choose(std::span<const int64_t> ranks) {
    for (const int64_t rank : ranks) {
      int64_t below = 0;
      size_t bucket = 0;
      while (below + upper_[bucket] <= rank) below += upper_[bucket++];
      lower_.try_emplace(static_cast<uint32_t>(bucket), kBuckets, int64_t{0});
      places_[rank] = {static_cast<uint32_t>(bucket), rank - below};
    }
  }
  void refine(float value) {
    const uint32_t code = code_of(value);
    const auto found = lower_.find(code >> 16);
    if (found != lower_.end()) ++found->second[code & 0xFFFFU];
  }
  float at(int64_t rank) const {
    const auto [bucket, within] = places_.at(rank);
    const std::vector<int64_t>& counts = lower_.at(bucket);
    int64_t below = 0;
    uint32_t low = 0;
    while (below + counts[low] <= within) below += counts[low++];
    return value_of((bucket << 16) | low);
  }

 private:
  std::vector<int64_t> upper_;
  std::map<uint32_t, std::vector<int64_t>> lower_;
  std::map<int64_t, std::pair<uint32_t, int64_t>> places_;
};

struct DimSums {
  double sum = 0, squares = 0, mean = 0;
  float min = 0, max = 0;
  RankFinder ranks;
};

constexpr std::array<double, 2> kQuantiles = {0.01, 0.99};

/// The one or two ranks between which numpy's linear quantile lies.
std::pair<int64_t, double> rank_of(double q, int64_t count) {
  const double position = q * static_cast<double>(count - 1);
  const auto rank = static_cast<int64_t>(position);
  return {rank, position - static_cast<double>(rank)};
}

double quantile_of(const RankFinder& ranks, double q, int64_t count) {
  const auto [rank, rest] = rank_of(q, count);
  const auto low = static_cast<double>(ranks.at(rank));
  if (rank + 1 >= count) return low;
  return low + (static_cast<double>(ranks.at(rank + 1)) - low) * rest;
}

}  // namespace

FeatureStats chunk_stats(const Dataset& dataset, const ChunkSpec& spec,
                         std::span<const int64_t> episode_positions) {
  const Feature* action = dataset.find_feature(spec.action);
  const auto width = static_cast<size_t>(action == nullptr ? 0 : action->width());
  std::vector<DimSums> dims(width);
  const auto over_values = [&](const auto& each) {
    for (const int64_t position : episode_positions) {
      for_each_chunk(dataset, spec, position,
                     [&](std::span<const float> rows, std::span<const uint8_t>) {
                       for (size_t r = 0; r < rows.size(); r += width) {
                         for (size_t d = 0; d < width; ++d) each(dims[d], rows[r + d]);
                       }
                     });
    }
  };
  int64_t count = 0;
  for (const int64_t position : episode_positions) {
    count += dataset.episodes().at(static_cast<size_t>(position)).length * spec.horizon;
  }
  LS_CHECK(count > 0, DataError, "{}: there are no chunks of '{}' to compute statistics from",
           dataset.root().string(), spec.action);
  bool first = true;
  size_t seen = 0;
  over_values([&](DimSums& d, float value) {
    d.min = first ? value : std::min(d.min, value);
    d.max = first ? value : std::max(d.max, value);
    d.sum += static_cast<double>(value);
    d.ranks.count(value);
    if (first && ++seen == width) first = false;
  });
  std::vector<int64_t> ranks;
  for (const double q : kQuantiles) {
    const int64_t rank = rank_of(q, count).first;
    ranks.push_back(rank);
    ranks.push_back(std::min(rank + 1, count - 1));
  }
  for (DimSums& d : dims) {
    d.mean = d.sum / static_cast<double>(count);
    d.ranks.choose(ranks);
  }
  over_values([](DimSums& d, float value) {
    const double off = static_cast<double>(value) - d.mean;
    d.squares += off * off;
    d.ranks.refine(value);
  });
  FeatureStats out;
  out.count = count;
  out.source =
      fmt::format("{} '{}' (computed from chunks)", dataset.root().string(), chunk_stats_key(spec));
  for (const DimSums& d : dims) {
    out.min.push_back(static_cast<double>(d.min));
    out.max.push_back(static_cast<double>(d.max));
    out.mean.push_back(d.mean);
    out.std.push_back(std::sqrt(d.squares / static_cast<double>(count)));
    out.q01.push_back(quantile_of(d.ranks, kQuantiles[0], count));
    out.q99.push_back(quantile_of(d.ranks, kQuantiles[1], count));
  }
  return out;
}

FeatureStats chunk_stats(const Dataset& dataset, const ChunkSpec& spec) {
  std::vector<int64_t> all(dataset.episodes().size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return chunk_stats(dataset, spec, all);
}

FeatureStats completed_chunk_stats(const Dataset& dataset, const ChunkSpec& spec) {
  const std::string key = chunk_stats_key(spec);
  const auto stored = dataset.stats().find(key);
  const Feature* action = dataset.find_feature(spec.action);
  if (stored != dataset.stats().end()) {
    const FeatureStats& s = stored->second;
    const size_t width = action == nullptr ? 0 : static_cast<size_t>(action->width());
    for (const auto* values : {&s.min, &s.max, &s.mean, &s.std, &s.q01, &s.q99}) {
      LS_CHECK(values->size() == width, DataError,
               "{}: the statistics '{}' have {} numbers, the feature '{}' has {}; remove them to "
               "have them computed",
               s.source.empty() ? dataset.root().string() : s.source, key, values->size(),
               spec.action, width);
    }
    return s;
  }
  FeatureStats out = chunk_stats(dataset, spec);
  log::info("{}: statistics of '{}' computed from {} actions in chunks", dataset.root().string(),
            key, out.count);
  return out;
}

}  // namespace longship::data
