#include "data/bad_samples.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "data/stats.h"

namespace longship::data {

std::vector<BadFrame> find_bad_frames(const Dataset& dataset,
                                      const std::vector<std::string>& columns) {
  std::vector<BadFrame> out;
  for (const std::string& column : columns) {
    const Feature* feature = dataset.find_feature(column);
    if (feature == nullptr || feature->kind != FeatureKind::kNumeric) continue;
    const int64_t width = feature->width();
    const auto& episodes = dataset.episodes();
    for (int64_t position = 0; position < static_cast<int64_t>(episodes.size()); ++position) {
      const std::vector<float> values = dataset.column_values(column, std::span(&position, 1));
      const int64_t first = episodes[static_cast<size_t>(position)].first_sample;
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isfinite(values[i])) continue;
        const auto at = static_cast<int64_t>(i);
        out.push_back({first + at / width, column, at % width, values[i]});
        i = static_cast<size_t>((at / width + 1) * width) - 1;  // on to the next frame
      }
    }
  }
  return out;
}

std::vector<int64_t> samples_touching(const Dataset& dataset, std::span<const BadFrame> bad,
                                      const WindowSpec& windows) {
  std::set<int64_t> out;
  for (const BadFrame& frame : bad) {
    const auto window = windows.columns.find(frame.column);
    if (window == windows.columns.end()) continue;
    const auto [position, k] = dataset.locate(frame.sample_id);
    const Episode& episode = dataset.episodes()[static_cast<size_t>(position)];
    const int64_t last = episode.length - 1;
    for (const int64_t offset : window->second) {
      // Frames f with clamp(f + offset, 0, last) == k.
      int64_t from = k - offset, to = k - offset;
      if (k == last) to = last;
      if (k == 0) from = 0;
      for (int64_t f = std::max<int64_t>(from, 0); f <= std::min(to, last); ++f) {
        out.insert(episode.first_sample + f);
      }
    }
  }
  return {out.begin(), out.end()};
}

std::map<std::string, FeatureStats> clean_stats(const Dataset& dataset,
                                                std::span<const BadFrame> bad) {
  std::map<std::string, std::set<int64_t>> bad_rows;
  for (const BadFrame& frame : bad) bad_rows[frame.column].insert(frame.sample_id);
  std::map<std::string, FeatureStats> out;
  for (const auto& [column, rows] : bad_rows) {
    const int64_t width = dataset.find_feature(column)->width();
    std::vector<float> values = dataset.column_values(column);
    size_t kept = 0;
    for (int64_t id = 0; id < dataset.size(); ++id) {
      if (rows.contains(id)) continue;
      const auto from = values.begin() + id * width;
      std::copy(from, from + width, values.begin() + static_cast<int64_t>(kept) * width);
      ++kept;
    }
    values.resize(kept * static_cast<size_t>(width));
    LS_CHECK(kept > 0, DataError, "{}: every row of '{}' holds a NaN or infinite number",
             dataset.root().string(), column);
    const std::string source =
        fmt::format("computed from the {} rows of {} without NaN or infinite numbers", kept,
                    dataset.root().string());
    out[column] = exact_stats(values, width, source);
    out[column].source = source;
  }
  return out;
}

std::string describe(const Dataset& dataset, const BadFrame& bad) {
  const auto [position, frame] = dataset.locate(bad.sample_id);
  return fmt::format("episode {}, frame {}: {}[{}] is {}",
                     dataset.episodes()[static_cast<size_t>(position)].index, frame, bad.column,
                     bad.dim, bad.value);
}

}  // namespace longship::data
