#include "data/lerobot/stored_stats.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/error.h"
#include "data/lerobot/json_text.h"

namespace longship::data::lerobot {

namespace {

using Json = nlohmann::ordered_json;
using StatsMap = std::map<std::string, FeatureStats>;

std::vector<double> numbers(const Json& stats, const char* key, const std::string& what) {
  const auto found = stats.find(key);
  if (found == stats.end() || found->is_null()) return {};
  return json_numbers(*found, what + "." + key);
}

FeatureStats read_feature_stats(const Json& json, const std::string& what) {
  LS_CHECK(json.is_object(), DataError, "{} is no object", what);
  FeatureStats stats;
  stats.min = numbers(json, "min", what);
  stats.max = numbers(json, "max", what);
  stats.mean = numbers(json, "mean", what);
  stats.std = numbers(json, "std", what);
  stats.q01 = numbers(json, "q01", what);
  stats.q99 = numbers(json, "q99", what);
  const std::vector<double> count = numbers(json, "count", what);
  if (!count.empty() && count.front() >= 0 && count.front() < 9.0e15) {
    stats.count = static_cast<int64_t>(count.front());
  }
  for (const auto* other : {&stats.max, &stats.mean, &stats.std, &stats.q01, &stats.q99}) {
    LS_CHECK(other->empty() || stats.min.empty() || other->size() == stats.min.size(), DataError,
             "{} has statistics of {} and of {} numbers", what, stats.min.size(), other->size());
  }
  return stats;
}

/// Sum over episodes in lerobot's order of operations: means first, then variances about the total
/// mean.
class Aggregate {
 public:
  void add(FeatureStats part, const std::string& what) {
    LS_CHECK(part.count > 0 && !part.mean.empty() && part.mean.size() == part.std.size() &&
                 part.mean.size() == part.min.size() && part.mean.size() == part.max.size() &&
                 (parts_.empty() || parts_.front().mean.size() == part.mean.size()),
             DataError, "{}: count, min, max, mean and std of one width are needed", what);
    parts_.push_back(std::move(part));
  }

  FeatureStats result() const {
    FeatureStats out;
    const size_t width = parts_.front().mean.size();
    out.mean.assign(width, 0);
    out.std.assign(width, 0);
    out.min = parts_.front().min;
    out.max = parts_.front().max;
    for (const FeatureStats& part : parts_) {
      out.count += part.count;
      for (size_t d = 0; d < width; ++d) {
        out.mean[d] += part.mean[d] * static_cast<double>(part.count);
        out.min[d] = std::min(out.min[d], part.min[d]);
        out.max[d] = std::max(out.max[d], part.max[d]);
      }
    }
    const auto total = static_cast<double>(out.count);
    for (double& mean : out.mean) mean /= total;
    for (const FeatureStats& part : parts_) {
      for (size_t d = 0; d < width; ++d) {
        const double delta = part.mean[d] - out.mean[d];
        out.std[d] += (part.std[d] * part.std[d] + delta * delta) * static_cast<double>(part.count);
      }
    }
    for (double& value : out.std) value = std::sqrt(value / total);
    return out;
  }

 private:
  std::vector<FeatureStats> parts_;
};

bool present(const Layout& layout, const char* name, Findings& findings) {
  std::error_code code;
  if (std::filesystem::is_regular_file(layout.root / name, code)) return true;
  findings.info("stats-missing", name, "the dataset brings no statistics", "",
                "they are computed from the rows");
  return false;
}

// Values between q10 and q90 hold four fifths of the data, so a tenth lies below and a tenth above.
bool is_too_small(const std::vector<double>& std_dev, const std::vector<double>& mean,
                  const std::vector<double>& q10, const std::vector<double>& q90) {
  if (mean.size() != std_dev.size() || q10.size() != std_dev.size() || q90.size() != q10.size()) {
    return false;
  }
  for (size_t d = 0; d < std_dev.size(); ++d) {
    const double below = mean[d] - q10[d], above = q90[d] - mean[d];
    const double bound = std::sqrt(0.1 * (below * below + above * above));
    if (std_dev[d] < 0.1 * bound) return true;
  }
  return false;
}

bool is_narrow_integer(const std::string& dtype) {
  return dtype == "uint8" || dtype == "int8" || dtype == "uint16" || dtype == "int16";
}

void drop_untrusted_std(const Feature& feature, const Json* json, FeatureStats& stats,
                        Findings& findings) {
  const bool is_camera = feature.kind != FeatureKind::kNumeric;
  if (!is_camera && !is_narrow_integer(feature.dtype)) return;
  if (json != nullptr && is_too_small(stats.std, stats.mean, numbers(*json, "q10", feature.name),
                                      numbers(*json, "q90", feature.name))) {
    findings.warn(
        "image-std", fmt::format("meta/stats.json {}", feature.name),
        fmt::format("the std {:.3g} is below a tenth of what its mean and quantiles allow",
                    stats.std.front()),
        "written by a library that squared 8- or 16-bit numbers in their own width",
        "it is not used");
  }
  stats.std.clear();
}

StatsMap read_json(const Layout& layout, Findings& findings) {
  const char* name = "meta/stats.json";
  StatsMap out;
  if (!present(layout, name, findings)) return out;
  try {
    const Json json = read_json_object(layout.root / name);
    for (const Feature& feature : layout.info.features) {
      const auto found = json.find(feature.name);
      if (found == json.end() || feature.kind == FeatureKind::kString) continue;
      FeatureStats stats = read_feature_stats(*found, feature.name);
      stats.source = name;
      drop_untrusted_std(feature, &*found, stats, findings);
      out.emplace(feature.name, std::move(stats));
    }
  } catch (const Error& error) {
    findings.error("stats", name, error.what(), "one object of statistics per feature",
                   "remove the file to have them computed from the rows");
    out.clear();
  }
  return out;
}

StatsMap read_episodes_stats(const Layout& layout, Findings& findings) {
  const char* name = "meta/episodes_stats.jsonl";
  StatsMap out;
  if (!present(layout, name, findings)) return out;
  std::set<int64_t> wanted, seen;
  for (const EpisodeRecord& episode : layout.episodes) {
    if (episode.length > 0) wanted.insert(episode.index);
  }
  std::map<std::string, Aggregate> sums;
  const bool readable =
      read_json_lines(layout.root / name, name, findings, [&](int64_t, const Json& line) {
        const auto index = line.find("episode_index");
        const auto stats = line.find("stats");
        LS_CHECK(index != line.end() && stats != line.end() && stats->is_object(), DataError,
                 "the keys episode_index and stats are needed");
        const int64_t episode = json_integer(*index, "episode_index");
        if (!wanted.contains(episode) || !seen.insert(episode).second) return;
        for (const Feature& feature : layout.info.features) {
          const auto found = stats->find(feature.name);
          if (found == stats->end() || feature.kind == FeatureKind::kString) continue;
          sums[feature.name].add(read_feature_stats(*found, feature.name), feature.name);
        }
      });
  if (!readable || sums.empty()) return out;
  if (seen != wanted) {
    findings.warn("stats-incomplete", name,
                  fmt::format("it covers {} of {} episodes", seen.size(), wanted.size()),
                  "every episode", "all statistics are computed from the rows");
    return out;
  }
  for (const Feature& feature : layout.info.features) {
    const auto sum = sums.find(feature.name);
    if (sum == sums.end()) continue;
    FeatureStats stats = sum->second.result();
    stats.source = name;
    drop_untrusted_std(feature, nullptr, stats, findings);
    out.emplace(feature.name, std::move(stats));
  }
  return out;
}

void check_constants(const std::string& name, const ColumnData& column, const FeatureStats& stats,
                     Findings& findings) {
  const auto width = static_cast<size_t>(column.width);
  for (size_t d = 0; d < width; ++d) {
    const bool zero_std = d < stats.std.size() && stats.std[d] == 0;
    const bool zero_range = d < stats.min.size() && stats.min[d] == stats.max[d];
    if (!zero_std && !zero_range) continue;
    float low = column.values[d], high = low;
    for (size_t i = d; i < column.values.size(); i += width) {
      low = std::min(low, column.values[i]);
      high = std::max(high, column.values[i]);
    }
    if (low == high) continue;
    findings.error(
        "stats-contradict-rows", fmt::format("{}[{}]", name, d),
        fmt::format("{} says that it never changes ({} is 0), the rows run from {} to {}",
                    stats.source, zero_std ? "std" : "max - min", low, high),
        "statistics of these rows",
        fmt::format("remove {} to have them computed from the rows, or longship dataset repair",
                    stats.source));
  }
}

}  // namespace

StatsMap read_stored_stats(const Layout& layout, Findings& findings) {
  return layout.info.version == Version::kV21 ? read_episodes_stats(layout, findings)
                                              : read_json(layout, findings);
}

void check_stats(const Layout& layout, const Table& table, const StatsMap& stats,
                 const OpenOptions& options, Findings& findings) {
  bool lacks_quantiles = false;
  for (const Feature& feature : layout.info.features) {
    const auto found = stats.find(feature.name);
    const auto column = table.columns.find(feature.name);
    if (found == stats.end() || column == table.columns.end()) continue;
    const bool used = std::find(options.used_columns.begin(), options.used_columns.end(),
                                feature.name) != options.used_columns.end();
    if (!used || feature.shape.size() > 1) continue;
    const std::vector<double>& some =
        found->second.min.empty() ? found->second.mean : found->second.min;
    if (!some.empty() && static_cast<int64_t>(some.size()) != feature.width()) {
      findings.error(
          "stats-width", feature.name,
          fmt::format("its statistics in {} have {} numbers, the feature has {}",
                      found->second.source, some.size(), feature.width()),
          "equal widths",
          fmt::format("remove {} to have them computed from the rows, or longship dataset repair",
                      found->second.source));
      continue;
    }
    lacks_quantiles = lacks_quantiles || found->second.q01.empty() || found->second.q99.empty();
    if (column->second.sound && !column->second.values.empty()) {
      check_constants(feature.name, column->second, found->second, findings);
    }
  }
  if (lacks_quantiles && layout.is_v3()) {
    findings.info("stats-no-quantiles", "meta/stats.json", "q01 and q99 are absent", "",
                  "they are computed from the rows where a model needs them");
  }
}

}  // namespace longship::data::lerobot
