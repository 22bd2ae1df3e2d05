#include "apps/inspect_dataset.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "data/dataset.h"
#include "data/lerobot/lerobot_dataset.h"

namespace longship::apps {
namespace {

struct Lengths {
  int64_t shortest = 0;
  int64_t longest = 0;
};

Lengths episode_lengths(const data::Dataset& dataset) {
  Lengths lengths;
  for (const auto& episode : dataset.episodes()) {
    lengths.shortest =
        lengths.longest == 0 ? episode.length : std::min(lengths.shortest, episode.length);
    lengths.longest = std::max(lengths.longest, episode.length);
  }
  return lengths;
}

/// Episodes in which each task text occurs.
std::map<std::string, int64_t> episodes_per_task(const data::Dataset& dataset) {
  std::map<std::string, int64_t> count;
  for (const auto& episode : dataset.episodes()) {
    for (const auto& task : episode.tasks) ++count[task];
  }
  return count;
}

nlohmann::json to_json(const data::Dataset& dataset) {
  nlohmann::json features = nlohmann::json::array();
  for (const auto& feature : dataset.features()) {
    nlohmann::json entry = {
        {"name", feature.name}, {"dtype", feature.dtype}, {"shape", feature.shape}};
    if (!feature.dim_names.empty()) entry["names"] = feature.dim_names;
    if (const auto it = dataset.stats().find(feature.name); it != dataset.stats().end()) {
      entry["stats"] = {{"min", it->second.min},
                        {"max", it->second.max},
                        {"mean", it->second.mean},
                        {"source", it->second.source}};
    }
    features.push_back(entry);
  }
  const Lengths lengths = episode_lengths(dataset);
  return {{"kind", "dataset"},
          {"path", dataset.root().string()},
          {"format", dataset.format()},
          {"fps", dataset.fps()},
          {"episodes", dataset.episodes().size()},
          {"frames", dataset.size()},
          {"shortest_episode", lengths.shortest},
          {"longest_episode", lengths.longest},
          {"cameras", dataset.cameras()},
          {"tasks", episodes_per_task(dataset)},
          {"features", features}};
}

std::string shape_text(const data::Feature& feature) {
  return feature.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(feature.shape, " x "));
}

/// One line per dimension of the columns people look at first.
void print_ranges(const data::Dataset& dataset, const std::string& name) {
  const data::Feature* feature = dataset.find_feature(name);
  const auto stats = dataset.stats().find(name);
  if (feature == nullptr || stats == dataset.stats().end() || stats->second.min.empty()) return;
  fmt::print("\n{} ({})\n  {:<24} {:>12} {:>12} {:>12} {:>12}\n", name, stats->second.source,
             "dimension", "min", "max", "mean", "std");
  const auto& s = stats->second;
  for (size_t i = 0; i < s.min.size(); ++i) {
    const std::string label =
        i < feature->dim_names.size() ? feature->dim_names[i] : fmt::format("[{}]", i);
    fmt::print("  {:<24} {:>12.5g} {:>12.5g} {:>12.5g} {:>12.5g}\n", label, s.min[i],
               i < s.max.size() ? s.max[i] : 0.0, i < s.mean.size() ? s.mean[i] : 0.0,
               i < s.std.size() ? s.std[i] : 0.0);
  }
}

void print_text(const data::Dataset& dataset) {
  const Lengths lengths = episode_lengths(dataset);
  const auto frames = dataset.size();
  fmt::print("{}\n  {} dataset\n", dataset.root().string(), dataset.format());
  fmt::print("  {} episodes, {} frames, {:g} frames/s: {} in all\n",
             with_thousands(static_cast<int64_t>(dataset.episodes().size())),
             with_thousands(frames), dataset.fps(),
             human_duration(static_cast<double>(frames) / dataset.fps()));
  fmt::print("  episodes of {} to {} frames\n", lengths.shortest, lengths.longest);
  fmt::print("\ntasks\n");
  for (const auto& [task, count] : episodes_per_task(dataset))
    fmt::print("  {:>6} episodes  {}\n", count, task);
  fmt::print("\nfeatures\n");
  for (const auto& feature : dataset.features()) {
    fmt::print("  {:<36} {:<8} {}\n", feature.name, feature.dtype, shape_text(feature));
  }
  print_ranges(dataset, "observation.state");
  print_ranges(dataset, "action");
}

}  // namespace

int inspect_dataset(const std::filesystem::path& path, bool json) {
  const auto dataset = data::open_lerobot(path);
  if (json) {
    fmt::print("{}\n", to_json(*dataset).dump(1));
  } else {
    print_text(*dataset);
  }
  return 0;
}

}  // namespace longship::apps
