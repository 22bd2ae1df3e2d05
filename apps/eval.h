#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship eval open-loop`; sets `action` when it is chosen.
void add_eval_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
