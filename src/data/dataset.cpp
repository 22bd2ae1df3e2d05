#include "data/dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace longship::data {

int64_t Feature::width() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

const Feature* Dataset::find_feature(std::string_view name) const {
  for (const Feature& feature : features()) {
    if (feature.name == name) return &feature;
  }
  return nullptr;
}

std::vector<std::string> Dataset::cameras() const {
  std::vector<std::string> names;
  for (const Feature& feature : features()) {
    if (feature.kind == FeatureKind::kVideo || feature.kind == FeatureKind::kImage) {
      names.push_back(feature.name);
    }
  }
  return names;
}

std::pair<int64_t, int64_t> Dataset::locate(int64_t sample_id) const {
  LS_CHECK(sample_id >= 0 && sample_id < size(), DataError,
           "sample {} does not exist: dataset {} has samples 0 .. {}", sample_id, root().string(),
           size() - 1);
  const std::vector<Episode>& all = episodes();
  // The last episode that begins at or before the sample: an empty one shares its begin with its
  // follower and is passed over.
  const auto next = std::upper_bound(
      all.begin(), all.end(), sample_id,
      [](int64_t id, const Episode& episode) { return id < episode.first_sample; });
  const int64_t position = next - all.begin() - 1;
  return {position, sample_id - all[static_cast<size_t>(position)].first_sample};
}

std::vector<RawSample> Dataset::get_batch(std::span<const int64_t> sample_ids,
                                          const WindowSpec& windows) const {
  std::vector<RawSample> out;
  out.reserve(sample_ids.size());
  for (const int64_t id : sample_ids) out.push_back(get(id, windows));
  return out;
}

std::vector<float> Dataset::column_values(std::string_view name,
                                          std::span<const int64_t> episode_positions) const {
  WindowSpec windows;
  windows.columns[std::string(name)] = {0};
  std::vector<float> out;
  for (const int64_t position : episode_positions) {
    LS_CHECK(position >= 0 && position < static_cast<int64_t>(episodes().size()), DataError,
             "episode position {} does not exist: dataset {} has {} episodes", position,
             root().string(), episodes().size());
    const Episode& episode = episodes()[static_cast<size_t>(position)];
    for (int64_t frame = 0; frame < episode.length; ++frame) {
      const RawSample sample = get_columns(episode.first_sample + frame, windows);
      const std::vector<float>& values = sample.columns.begin()->second.values;
      out.insert(out.end(), values.begin(), values.end());
    }
  }
  return out;
}

std::vector<float> Dataset::column_values(std::string_view name) const {
  std::vector<int64_t> all(episodes().size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return column_values(name, all);
}

}  // namespace longship::data
