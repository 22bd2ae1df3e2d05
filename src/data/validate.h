#pragma once
// The whole check of a dataset: what opening finds, and what only reading every byte finds.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "data/checks.h"

namespace longship::data {

struct ValidateOptions {
  OpenOptions open;
  int64_t threads = 0;  // 0: one per processor
  /// Called from one thread at a time with the number of frames decoded so far and their total.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct Validation {
  std::string format;  // e.g. "v3.0"; empty when info.json is unreadable
  int64_t num_episodes = 0, num_frames = 0, num_decoded = 0;
  std::vector<Finding> findings;

  int64_t count(Severity severity) const;
};

/// All checks of check_dataset(), and besides: every frame of every video decodes and is counted;
/// frozen, black and one-coloured cameras; every column of every table decodes; stored statistics
/// against rows and pictures; files that nothing uses; empty, double and unused task texts. Never
/// throws for a fault of the data.
Validation validate_dataset(const std::filesystem::path& root, const ValidateOptions& options = {});

/// {"path", "format", "episodes", "frames", "errors", "warnings", "notes", "findings":
/// [{"severity", "code", "place", "fact", "expected", "cure"}]}, indented.
std::string validation_json(const std::filesystem::path& root, const Validation& validation);

}  // namespace longship::data
