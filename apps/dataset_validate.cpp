// longship dataset validate: everything that is wrong or notable, in one run.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "base/error.h"
#include "base/progress.h"
#include "data/validate.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path;
  std::vector<std::string> inputs;
  int64_t threads = 0;
  bool quick = false, strict = false, json = false;
};

data::Validation validate(const Options& options) {
  data::ValidateOptions settings;
  settings.threads = options.threads;
  if (!options.inputs.empty()) settings.open.used_columns = options.inputs;
  if (options.quick) {
    data::Validation out;
    out.findings = data::check_dataset(options.path, settings.open);
    return out;
  }
  std::unique_ptr<Progress> progress;
  settings.progress = [&progress](int64_t done, int64_t total) {
    if (progress == nullptr) progress = std::make_unique<Progress>("decode", total, "frame");
    progress->update(done);
  };
  return data::validate_dataset(options.path, settings);
}

std::string count_text(int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

int run(const Options& options) {
  const data::Validation result = validate(options);
  const int64_t errors = result.count(data::Severity::kError),
                warnings = result.count(data::Severity::kWarn),
                notes = result.count(data::Severity::kInfo);
  if (options.json) {
    fmt::print("{}", data::validation_json(options.path, result));
  } else {
    for (const data::Finding& finding : result.findings) {
      fmt::print("{}\n", data::format_finding(finding));
    }
    const std::string counts = fmt::format("{}, {}, {}", count_text(errors, "error", "errors"),
                                           count_text(warnings, "warning", "warnings"),
                                           count_text(notes, "note", "notes"));
    if (options.quick) {
      fmt::print("{}: {}; no picture was decoded\n", options.path, counts);
    } else {
      fmt::print("{}: {}; {} episodes, {} frames, {} pictures decoded\n", options.path, counts,
                 result.num_episodes, result.num_frames, result.num_decoded);
    }
  }
  const bool bad = errors > 0 || (options.strict && warnings > 0);
  return bad ? static_cast<int>(ExitCode::kData) : 0;
}

}  // namespace

void add_dataset_validate(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "validate", "Find everything that is wrong with a dataset: exit code 3 on any ERROR");
  command->add_option("path", options->path, "Dataset folder")->required();
  command
      ->add_option("--inputs", options->inputs,
                   "Numeric columns that training reads; NaN in any other is a note only. Default: "
                   "observation.state,action")
      ->delimiter(',');
  command->add_flag("--quick", options->quick,
                    "Only what every start of `longship train` checks: decodes no pictures");
  command->add_flag("--strict", options->strict, "Exit code 3 on a WARN as well");
  command->add_flag("--json", options->json, "Print JSON");
  command->add_option("--threads", options->threads, "Threads; 0 = one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->footer(
      "One line per finding: SEVERITY code place: fact; expected; cure. ERROR: training refuses "
      "the dataset. WARN and INFO: it is used as the line says.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
