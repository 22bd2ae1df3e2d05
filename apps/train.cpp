// longship train: reads the recipe, trains, evaluates.
#include "apps/train.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "apps/processes.h"
#include "base/config/load.h"
#include "base/error.h"
#include "base/strings.h"
#include "models/spec.h"
#include "train/open_loop_run.h"
#include "train/parallel.h"
#include "train/recipe.h"
#include "train/session.h"
#include "train/trainer.h"

namespace longship::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  bool print_config = false;
  bool explain = false;
  bool overwrite = false;
};

std::string shell_quoted(const std::string& word) {
  const bool plain = word.find_first_of(" \t\"'$&|;<>(){}[]*?#~`\\") == std::string::npos;
  return plain && !word.empty() ? word : "'" + word + "'";
}

/// The command that goes on with this run. --overwrite is left out on purpose: it would remove what
/// was saved.
std::string resume_command(const Options& options) {
  std::string out = "longship train " + shell_quoted(options.config);
  for (const std::string& text : options.overrides) out += " " + shell_quoted(text);
  return out;
}

int run(const Options& options) {
  const train::FamilyLookup lookup = &models::find_family;
  const train::Recipe recipe = train::load_recipe(options.config, options.overrides, lookup);
  if (options.print_config || options.explain) {
    fmt::print("{}", options.explain ? config::describe(recipe) : train::dump(recipe));
    return 0;
  }
  const auto parallel = connect_processes(recipe);
  train::TrainOptions train_options;
  train_options.overwrite = options.overwrite;
  train_options.command = resume_command(options);
  train_options.parallel = parallel.get();
  std::shared_ptr<const data::Dataset> dataset;
  try {
    dataset = train::open_dataset(recipe);
  } catch (const std::exception& error) {
    parallel->leave(error.what());
    throw;
  }
  const train::TrainOutcome outcome = train::train(recipe, dataset, train_options, lookup);
  parallel->close();
  if (!parallel->first()) {
    return outcome.interrupted ? static_cast<int>(ExitCode::kInterrupted) : 0;
  }
  if (outcome.interrupted) return static_cast<int>(ExitCode::kInterrupted);
  if (!recipe.eval.open_loop || !outcome.finished) return 0;
  train::OpenLoopRequest request;
  request.checkpoint = outcome.checkpoint;
  request.episodes = recipe.eval.episodes;
  request.draws = recipe.eval.draws;
  request.batch = recipe.eval.batch;
  request.device = recipe.train.device;
  request.out = std::filesystem::path(recipe.output_dir) / "open_loop";
  train::run_open_loop(request, lookup);
  return 0;
}

}  // namespace

void add_train_command(CLI::App& app, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train", "Train a model as a recipe says; the same command again resumes the run");
  command->add_option("config", options->config, "Recipe, a YAML file")->required();
  command->add_option(
      "overrides", options->overrides,
      "Settings that replace those of the file, e.g. optim.lr=1e-4 train.steps=2000");
  command->add_flag("--print-config", options->print_config,
                    "Print the resolved recipe as YAML and end");
  command->add_flag("--explain", options->explain,
                    "Print every setting with its value, unit, range and meaning, and end");
  command->add_flag("--overwrite", options->overwrite,
                    "Remove an earlier run in output_dir and start over (only files a run writes)");
  command->footer(
      "A run writes config.yaml, train.log, metrics.jsonl, tensorboard/, loss.svg, "
      "checkpoints/step_N/ and the link `latest` into output_dir.\n"
      "Ctrl-C once: finish the step, save, exit with code 130; twice: stop at once.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
