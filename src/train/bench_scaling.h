#pragma once
// What a recipe would need and how fast it would be on many GPUs, by strategy: memory and bytes
// from its plans, times from dist/scaling_model.h. Needs no GPU and no memory for the model.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dist/scaling_model.h"
#include "train/recipe.h"

namespace longship::train {

struct ScalingOptions {
  std::vector<int64_t> gpus = {8, 64, 1024};  // in all
  int64_t per_node = 8;
  std::optional<double> step_ms;     // of one GPU with the recipe's batch; without: no times
  dist::ScalingConstants constants;  // `peer` is taken from the recipe's parallel.transport
};

/// Builds the recipe's model without memory, as a CUDA device would have it, and predicts each
/// strategy that the recipe can use (hsdp: the GPUs of a node share one copy; left out in one node,
/// where it is fsdp) at each number of GPUs. train.global_batch counts the samples of ONE GPU here;
/// parallel.strategy, shard and replicate do not matter. The report:
/// {"family", "parameters", "samples_per_gpu", "micro_batches", "dtype", "reduce_dtype",
///  "bucket_mb", "reshard", "per_node", "step_ms" or null, "constants": {...}, "rows": [{"gpus",
///  "strategy", "shard": ranks that share one copy, "memory": {component: bytes, "total"} without
///  activations, "collectives": {name: {"count", "mb" sent}} per GPU and step, "sent_mb",
///  "times": {"compute_ms", "conversion_ms", "update_ms", "slowdown_ms", "exposed_ms", "step_ms",
///  "communication_ms", "samples_per_s", "efficiency"} or null}]}; mb: 1e6 bytes.
/// Throws ConfigError for GPUs that fill no whole nodes, and what building the model throws.
nlohmann::json bench_scaling(const Recipe& recipe, const ScalingOptions& options);

/// Tables of a report for a person.
std::string bench_scaling_text(const nlohmann::json& report);

}  // namespace longship::train
