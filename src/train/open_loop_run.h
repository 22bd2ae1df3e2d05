#pragma once
// Open-loop evaluation of a checkpoint on disk, with its files and console lines.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "train/open_loop.h"
#include "train/recipe.h"

namespace longship::train {

struct OpenLoopRequest {
  std::filesystem::path checkpoint;    // a checkpoint or a run folder
  std::optional<std::string> dataset;  // null: the one the checkpoint was trained on
  std::string episodes = "val";        // see parse_episodes
  int64_t draws = 16;
  int64_t batch = 64;
  std::optional<int64_t> seed;  // null: train.seed of the recipe
  std::filesystem::path out;    // folder of open_loop.json and open_loop.svg
  std::string device = "auto";
};

/// Reads the checkpoint, evaluates, writes <out>/open_loop.json and <out>/open_loop.svg, logs the
/// summary. Normalisation is the checkpoint's own. Throws CheckpointError, ConfigError, DataError;
/// Error with exit code 130 when interrupted.
OpenLoopReport run_open_loop(const OpenLoopRequest& request, const FamilyLookup& lookup);

}  // namespace longship::train
