#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longship::apps {

/// Adds `longship bench train|ablate|agree|sample|data|ops`; sets `action` when one is chosen.
void add_bench_command(CLI::App& app, std::function<int()>& action);

}  // namespace longship::apps
