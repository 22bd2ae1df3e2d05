#pragma once

#include <functional>

#include "models/parity.h"

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship parity DIR...`; sets `action` when it is chosen. Exit code 0: every row passes,
/// 1: a row fails, 2: a folder without case.json.
void add_parity_command(CLI::App& app, std::function<int()>& action);

/// The trainer's AdamW and schedule for a recorded recipe. Throws ConfigError for a schedule that
/// is not known.
std::unique_ptr<models::ParityOptimizer> make_parity_optimizer(
    std::vector<models::ParamInfo> parameters, const models::ParityRecipe& recipe);

}  // namespace longship::apps
