// The program: parses the command line, runs one subcommand, turns errors into messages and exit
// codes.
#include <c10/util/Exception.h>
#include <fmt/core.h>
#include <malloc.h>
#include <CLI/CLI.hpp>

#include <exception>
#include <functional>
#include <new>

#include "apps/bench.h"
#include "apps/calibrate.h"
#include "apps/checkpoint.h"
#include "apps/dataset.h"
#include "apps/eval.h"
#include "apps/inspect.h"
#include "apps/parity.h"
#include "apps/train.h"
#include "apps/versions.h"
#include "base/error.h"

namespace {

constexpr const char* kFooter =
    R"(Exit codes: 0 ok, 1 other (also: a parity case failed), 2 configuration or usage, 3 data,
4 checkpoint or weights, 5 device or out of memory, 6 non-finite numbers, 7 a peer or a collective failed,
130 interrupted after a clean save.

First steps: scripts/demo.sh trains a small Pi0.5 on the shipped PushT episodes;
'longship train --explain CONFIG' shows every setting with its meaning.)";

int report(const std::string& message, longship::ExitCode code) {
  fmt::print(stderr, "longship: error: {}\n", message);
  return static_cast<int>(code);
}

int run(int argc, char** argv) {
  CLI::App app("Longship trains robot policies and the models they grow from.", "longship");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return longship::apps::versions_text(); });
  std::function<int()> action;
  longship::apps::add_train_command(app, action);
  longship::apps::add_eval_command(app, action);
  longship::apps::add_inspect_command(app, action);
  longship::apps::add_dataset_command(app, action);
  longship::apps::add_checkpoint_command(app, action);
  longship::apps::add_parity_command(app, action);
  longship::apps::add_bench_command(app, action);
  longship::apps::add_calibrate_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : static_cast<int>(longship::ExitCode::kConfig);
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  using longship::ExitCode;
#ifdef M_TRIM_THRESHOLD
  // A batch's pictures are freed together; without this their pages go back to the system and are
  // fetched again for the next one, a tenth of the CPU time of reading.
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
  try {
    return run(argc, argv);
  } catch (const longship::Error& e) {
    return report(e.what(), e.code());
  } catch (const c10::OutOfMemoryError& e) {
    return report(
        fmt::format(
            "out of device memory: {}; use a smaller train.micro_batch or train.recompute=full",
            e.what_without_backtrace()),
        ExitCode::kDevice);
  } catch (const c10::Error& e) {
    return report(fmt::format("tensor library: {}", e.what_without_backtrace()), ExitCode::kOther);
  } catch (const std::bad_alloc&) {
    return report(
        "out of host memory; use a smaller train.micro_batch, fewer workers or a smaller model",
        ExitCode::kDevice);
  } catch (const std::exception& e) {
    return report(e.what(), ExitCode::kOther);
  }
}
