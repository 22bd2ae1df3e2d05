#pragma once
// Training runs of several processes on this machine, for tests.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/recipe.h"

namespace longship::train::testing {

struct RankOutcome {
  int exit_code = -1;  // 0, an Error's code, 99 for other exceptions, -1 when a signal ended it
  std::string error;   // its message
  int64_t step = 0;
  bool interrupted = false;
  std::vector<double> losses;
  double seconds = 0;
};

struct RunRequest {
  int64_t world_size = 1;
  std::function<Recipe(int64_t rank)> recipe;
  /// In the rank, before anything else.
  std::function<void(int64_t rank)> set_up = nullptr;
  int limit_s = 120;
};

/// Trains in forked processes, one for each rank.
std::vector<RankOutcome> run_training(const RunRequest& request);
/// The same where all must succeed with the same losses, which are returned.
std::vector<double> losses_of(const RunRequest& request);

/// configs/pi05/tiny_test.yaml on the shipped dataset.
Recipe tiny_pi05(const std::filesystem::path& output_dir,
                 const std::vector<std::string>& overrides);
RunRequest pi05_run(const std::filesystem::path& output_dir, int64_t world_size,
                    const std::vector<std::string>& overrides);
/// The artificial family and dataset of fake_family.h.
RunRequest fake_run(const std::filesystem::path& output_dir, int64_t world_size,
                    const std::vector<std::string>& overrides);

/// The tensors of a checkpoint: "model" (model.safetensors) or "state" (the optimizer's, whole,
/// whoever wrote them).
std::map<std::string, at::Tensor> checkpoint_tensors(const std::filesystem::path& checkpoint,
                                                     const std::string& which);

/// Largest |a - b| / |b|; infinity when the lengths differ.
double worst_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace longship::train::testing
