#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship inspect PATH`; sets `action` when it is chosen.
void add_inspect_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
