#pragma once
// What `longship bench train` says about the work of several processes, and about memory beside its
// plan.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "dist/plan.h"
#include "train/assembly.h"
#include "train/parallel.h"

namespace longship::train {

/// The costs of the recipe's strategy for so many processes, as the formulas have them.
dist::CostOptions cost_options(const Recipe& recipe, const dist::LaunchInfo& launch,
                               const GradientSync* sync);

/// Bytes that model, exchange and optimizer hold, by component. Without `sync` the gradients are
/// those that the parameters have at this moment.
dist::MemoryForecast held_memory(const Assembly& assembly);

/// {"parameters": {"planned": bytes, "held": bytes}, ..., "total": ..., "worst": largest |held /
/// planned - 1| of the components}.
nlohmann::json memory_plan_json(const dist::MemoryForecast& planned,
                                const dist::MemoryForecast& held);

/// Of the timed steps of one process.
struct OwnSteps {
  std::vector<double> step_ms;
  double exposed_ms = 0;  // waiting for others, mean of a step
  GradientSync::Traffic traffic;
};
/// {"world_size", "strategy", "collectives": {name: {"count", "mb", "predicted_mb", "ms"}} per step
/// of this process, "sent_mb", "predicted_mb", "comm_ms", "exposed_ms", "ranks": [{"rank",
/// "step_ms", "own_ms"}], "slowest_rank"}. Collective.
nlohmann::json parallel_json(Parallel& parallel, const Recipe& recipe, const Assembly& assembly,
                             const OwnSteps& own);

}  // namespace longship::train
