#pragma once
// What each optimisation of a recipe is worth: it is turned off alone, and everything is measured
// again.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/bench.h"

namespace longship::train {

/// Runs the recipe and, for every switch that is on (or those of `only`), the recipe without it,
/// with the same batches from the same weights. {"base": report, "rows": [{"switch", "off", "ms",
/// "gib", "launches", "idle_ms", "loss_error"}], "agree": bool}: ms, gib, launches and idle_ms are
/// what turning it off adds; loss_error is the mean relative difference of the losses, and `agree`
/// says that all are within the bound (bf16 2e-2, fp32 1e-4, FP8 5e-2). Throws ConfigError for a
/// switch in `only` that is no switch or is off already.
nlohmann::json ablate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                      const BenchOptions& options, const std::vector<std::string>& only,
                      const FamilyLookup& lookup);

/// A table of the report for a person.
std::string ablation_text(const nlohmann::json& report);

}  // namespace longship::train
