#pragma once
// Speed of training steps: the engine of `longship train`, timed and profiled.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "train/parallel.h"
#include "train/recipe.h"

namespace longship::train {

struct BenchOptions {
  int64_t steps = 20;         // timed
  int64_t warmup = 4;         // before them; captures happen here
  int64_t profile_steps = 3;  // after them; 0: no profile
  /// Random batches with this many text tokens per sample instead of the recipe's dataset.
  std::optional<int64_t> synthetic_tokens;
  int64_t synthetic_images = 2;  // pictures per sample of a random batch
  bool preload = false;          // the dataset's batches are made before the clock starts
  std::filesystem::path trace;   // Chrome trace of the profiled steps; empty: none
};

/// A training batch as collate() makes it: the first of the recipe's dataset, or, without one, a
/// random one. `recipe` is bound to the dataset.
std::unique_ptr<models::Batch> first_batch(const Recipe& recipe,
                                           std::shared_ptr<const data::Dataset> dataset,
                                           const BenchOptions& options);

/// What the steps gave, for comparing variants.
struct BenchLosses {
  std::vector<double> losses;  // of every step in order, warm-up included
};

/// Runs the recipe's step and returns the report: samples_per_s, ms_per_step (median, p10, p90),
/// warmup_s, mfu, memory and its plan, gpu (busy share, gaps, categories), data wait. `dataset` may
/// be null with synthetic_tokens. On a CPU the profile holds host operators only. With several
/// processes (`parallel`) all call it; the report is this one's, but for samples_per_s and
/// "parallel". Throws what training throws.
nlohmann::json bench_train(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                           const BenchOptions& options, const FamilyLookup& lookup,
                           BenchLosses* losses = nullptr, Parallel* parallel = nullptr);

/// The largest train.global_batch (as one micro-batch) that fits the device with the recipe's
/// settings, a multiple of `granularity`, found by doubling and bisecting real steps on random
/// batches. {"batch": n, "tried": [{batch, fits, peak_gib}]}. Throws DeviceError when not even
/// `granularity` fits.
nlohmann::json find_batch(const Recipe& recipe, const BenchOptions& options, int64_t granularity,
                          const FamilyLookup& lookup);

/// A few lines of a report for a person.
std::string bench_text(const nlohmann::json& report);

}  // namespace longship::train
