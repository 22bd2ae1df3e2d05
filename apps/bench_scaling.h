#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship bench scaling` to the command `bench`; sets `action` when it is chosen.
void add_bench_scaling_command(CLI::App& bench, std::function<int()>& action);

}  // namespace longship::apps
