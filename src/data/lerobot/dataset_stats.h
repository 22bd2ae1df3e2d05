#pragma once
// Statistics of a whole dataset in one pass over its files, for stats.json.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/stats_pass.h"

namespace longship::data::lerobot {

struct StatsRequest {
  /// Numeric features; empty: all.
  std::vector<std::string> columns;
  /// > 0: statistics of `action` are those of chunks: for every frame t the rows t .. t+horizon-1,
  /// where the last row stands for those behind the episode's end, as openpi computes them.
  int64_t horizon = 0;
  /// Of these dimensions the state of frame t is subtracted from every row of its chunk, in
  /// float32. Empty: of none. Needs a horizon.
  std::vector<bool> delta_mask;
  std::string action = "action", state = "observation.state";
  /// Cameras too, from every pixel of every frame.
  bool pixels = false;
  /// Quantiles are exact while the values take no more than this, else those of a ValueSketch.
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t threads = 0;  // 0: one per processor
  std::function<void(int64_t done, int64_t total)> progress;
};

struct FeatureResult {
  std::string name;
  FullStats stats;
  bool is_camera = false;
};

struct StatsResult {
  std::vector<FeatureResult> features;  // in the order of info.json
  bool exact = true;                    // quantiles; the rest is exact always
  /// The values that exact quantiles keep, in bytes.
  int64_t value_bytes = 0;
};

/// Reads table by table, several at once, and keeps no rows. NaN and infinities are left out and
/// counted. The result is the same for any number of threads. Throws DataError (metadata, tables,
/// lengths) and ConfigError (unknown column, mask or horizon that do not fit).
StatsResult dataset_stats(const std::filesystem::path& root, const StatsRequest& request);

/// "6,-1,6,-1" -> six times true, once false, ...: openpi's notation. Throws ConfigError.
std::vector<bool> parse_delta_mask(const std::string& text);

/// {"feature": {"min": ..}} as LeRobot's meta/stats.json, indented.
std::string stats_json(const StatsResult& result);

}  // namespace longship::data::lerobot
