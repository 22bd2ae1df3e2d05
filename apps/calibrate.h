#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship calibrate CONFIG --out TABLE`; sets `action` when it is chosen.
void add_calibrate_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
