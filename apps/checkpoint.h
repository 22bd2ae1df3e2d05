#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship checkpoint verify | consolidate | reshard | diff`; sets `action` when one is
/// chosen.
void add_checkpoint_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
