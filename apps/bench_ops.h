#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace longship::apps {

struct BenchOpsOptions {
  std::string filter;  // words that "operator shape" must contain
  std::string json;    // a file, or "-" for standard output
  int repeats = 50;
  bool list = false;  // only print the rows
};

/// Prints the table of operators and writes the JSON. Throws DeviceError without a CUDA device and
/// ConfigError when the filter leaves nothing. 1 when a row failed, else 0.
int run_bench_ops(const BenchOpsOptions& options);

/// Adds `ops` below the command `bench`; sets `action` when it is chosen.
void add_bench_ops_command(CLI::App& bench, std::function<int()>& action);

}  // namespace longship::apps
