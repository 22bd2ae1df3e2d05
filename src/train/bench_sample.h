#pragma once
// Latency of sampling.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/bench.h"

namespace longship::train {

/// Samples train.global_batch observations at a time, options.steps times after options.warmup,
/// from the host's batch to actions on the host: {"ms": {median, p10, p90, p99}, "eager_ms",
/// "graph_nodes", "max_difference"}. max_difference: captured against eager actions of one seed.
/// Random observations (options.synthetic_tokens, default 60). train.fp8 has no effect: products
/// are in train.dtype.
nlohmann::json bench_sample(const Recipe& recipe, const BenchOptions& options,
                            const FamilyLookup& lookup);
std::string bench_sample_text(const nlohmann::json& report);

}  // namespace longship::train
