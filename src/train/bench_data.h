#pragma once
// Speed of the data path alone: how many samples a second come out of a dataset, and where their
// time goes.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/recipe.h"

namespace longship::train {

struct DataBenchOptions {
  std::vector<int64_t> threads = {1, 2};  // one measurement each; 0: the measuring thread itself
  double seconds = 5;                     // of a window
  int64_t windows = 3;                    // per number of threads
  int64_t batch = 32;                     // with a model: the recipe's micro-batch
  int64_t chunk = 50;                     // action steps of a sample, without a model
  uint64_t seed = 0;                      // of the order, without a model
};

/// Random access to a dataset without a model: batches of one frame per camera and an action chunk,
/// as columns and RGB pictures in memory. The report:
/// {"mode": "dataset", "dataset", "format", "samples", "cameras", "batch", "chunk", "cores",
///  "longship", "peak_rss_mb", "runs": [{"threads", "samples_per_s", "samples_per_cpu_s",
///  "cpu_us_per_sample", "queue", "starved", "blocked", "windows": [...], "stages": {name:
///  {"wall_us", "cpu_us"}} per sample, "pictures": {...} per sample}]}.
/// Rates are medians over the windows; a window tells how many cores other processes used.
nlohmann::json bench_dataset(const data::Dataset& dataset, const DataBenchOptions& options);

/// The same with what a model makes of the samples: the recipe's transform, collation, draws, and,
/// with a GPU, pinning and the copy to the device ("device_copy", in the measuring thread). The
/// model's weights are not made. "mode": "model". Throws what making batches throws.
nlohmann::json bench_feed(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                          const DataBenchOptions& options, const FamilyLookup& lookup);

/// A table of a report for a person.
std::string bench_data_text(const nlohmann::json& report);

}  // namespace longship::train
