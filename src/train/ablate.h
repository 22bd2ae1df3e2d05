#pragma once
// What each optimisation of a recipe is worth: it is turned off alone, and everything is measured
// again.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/bench.h"

namespace longship::train {

/// Runs the recipe and, for every switch (train/switches.h) that is on and can matter, or those of
/// `only`, the recipe without it, with the same batches from the same weights. {"base": report,
/// "rows": [{"switch", "off", "against", "ms", "wall_ms", "data_wait_ms", "gib", "launches",
/// "idle_ms", "loss_error", "agrees"}], "left_out": [{"switch", "why"}], "loss_bound", "agree"}.
/// The figures are what turning it off adds: per step, ms between the ends of steps (median),
/// wall_ms by the host's clock (mean), data_wait_ms of the training thread. "against" holds the
/// settings of both sides where the plain way forces some; empty: against "base". loss_error is the
/// mean relative difference of the losses, and `agree` says that all are within the bound (bf16
/// 2e-2, fp32 1e-4, FP8 5e-2). Throws ConfigError for a switch in `only` that is none, or changes
/// nothing.
nlohmann::json ablate(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                      const BenchOptions& options, const std::vector<std::string>& only,
                      const FamilyLookup& lookup);

/// A table of the report for a person.
std::string ablation_text(const nlohmann::json& report);

}  // namespace longship::train
