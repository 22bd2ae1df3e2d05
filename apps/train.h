#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship train CONFIG [a.b=c ...]`; sets `action` when it is chosen.
void add_train_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
