#include "apps/bench_ops.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/version.h"
#include "bench/ops_bench.h"
#include "runtime/device.h"
#include "runtime/gpu_facts.h"

namespace longship::apps {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16] = {};
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%d", &parts);
  return text;
}

void print_list(const std::vector<bench::OpRow>& rows) {
  for (const bench::OpRow& row : rows) fmt::print("{:<26} {}\n", row.name, row.shape);
}

void write_json(const nlohmann::json& json, const std::string& target) {
  const std::string text = json.dump(2) + "\n";
  if (target == "-") {
    fmt::print("{}", text);
  } else if (!target.empty()) {
    write_file_atomic(target, text);
  }
}

}  // namespace

int run_bench_ops(const BenchOpsOptions& options) {
  const auto rows = bench::select_op_rows(bench::all_op_rows(), options.filter);
  LS_CHECK(!rows.empty(), ConfigError,
           "bench ops: no row contains '{}'; see longship bench ops --list", options.filter);
  if (options.list) {
    print_list(rows);
    return 0;
  }
  LS_CHECK(runtime::cuda_available(), DeviceError,
           "bench ops: no CUDA device is present; the table measures kernels of the GPU (--list "
           "prints its rows)");
  const c10::Device device = runtime::parse_device("cuda");
  const bench::BenchContext context{device};
  bench::Timer timer(device, {.warm_up = 10, .repeats = options.repeats});
  const runtime::GpuFacts gpu = runtime::gpu_facts(device);
  const bench::MeasuredCeilings ceilings = bench::measure_ceilings(context, timer);
  std::FILE* out = options.json == "-" ? stderr : stdout;
  fmt::print(out, "{}, driver {}: copy {:.0f} GB/s, bf16 {:.0f} TFLOP/s, fp8 {:.0f} TFLOP/s\n{}",
             gpu.name, gpu.driver, ceilings.copy_gb_s, ceilings.bf16_tflops, ceilings.fp8_tflops,
             bench::table_header());
  nlohmann::json results = nlohmann::json::array();
  bool failed = false;
  for (const bench::OpRow& row : rows) {
    const bench::OpResult result = bench::measure_row(row, context, timer, ceilings);
    fmt::print(out, "{}", bench::table_line(result));
    std::fflush(out);
    failed = failed || !result.error.empty();
    results.push_back(bench::result_json(result));
  }
  write_json({{"what", "bench ops"},
              {"date", today()},
              {"build", build_info()},
              {"torch", runtime::torch_version()},
              {"cuda", runtime::cuda_version()},
              {"gpu", gpu_facts_json(gpu)},
              {"repeats", options.repeats},
              {"filter", options.filter},
              {"ceilings", ceilings_json(ceilings)},
              {"rows", results}},
             options.json);
  return failed ? 1 : 0;
}

void add_bench_ops_command(CLI::App& bench, std::function<int()>& action) {
  auto options = std::make_shared<BenchOpsOptions>();
  CLI::App* command = bench.add_subcommand(
      "ops", "Speed of single operators on real shapes, against the best library call.");
  command->add_option("--filter", options->filter,
                      "only rows that contain these words, e.g. 'rms_norm prefix'");
  command->add_option("--json", options->json,
                      "also write the result as JSON to a file, or - for standard output");
  command->add_option("--repeats", options->repeats, "timed calls per row")
      ->check(CLI::Range(50, 100000));
  command->add_flag("--list", options->list, "print the rows and measure nothing");
  command->callback([options, &action] { action = [options] { return run_bench_ops(*options); }; });
}

}  // namespace longship::apps
