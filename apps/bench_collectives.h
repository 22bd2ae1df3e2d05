#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship bench collectives` to the command `bench`; sets `action` when it is chosen.
void add_bench_collectives_command(CLI::App& bench, std::function<int()>& action);

}  // namespace longship::apps
