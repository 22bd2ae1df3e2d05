// longship bench: speed of training steps, of sampling and of single operators.
#include "apps/bench.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench_collectives.h"
#include "apps/bench_data.h"
#include "apps/bench_ops.h"
#include "apps/bench_scaling.h"
#include "apps/processes.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "models/spec.h"
#include "train/ablate.h"
#include "train/agree.h"
#include "train/bench.h"
#include "train/bench_sample.h"
#include "train/parallel.h"
#include "train/recipe.h"
#include "train/session.h"

namespace longship::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string json;
  train::BenchOptions bench;
  int64_t find_batch = 0;
  int64_t updates = 0;
  std::vector<std::string> only, against;
};

train::Recipe recipe_of(const Options& options) {
  return train::load_recipe(options.config, options.overrides, &models::find_family);
}

int write(const nlohmann::json& report, const std::string& path, const std::string& text) {
  const std::string body = report.dump(1) + "\n";
  if (path.empty() || path == "-") {
    fmt::print("{}", body);
  } else {
    write_file_atomic(path, body);
    fmt::print("{}{}\n", text, path);
  }
  return 0;
}

std::shared_ptr<const data::Dataset> dataset_of(const Options& options,
                                                const train::Recipe& recipe) {
  return options.bench.synthetic_tokens ? nullptr : train::open_dataset(recipe);
}

int run_train(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe = recipe_of(options);
  if (options.find_batch > 0) {
    const auto report =
        train::find_batch(recipe, options.bench, options.find_batch, &models::find_family);
    return write(report, options.json, fmt::format("largest batch: {}\n", report["batch"].dump()));
  }
  const auto parallel = connect_processes(recipe);
  if (!parallel->first()) log::init(log::Level::kError);
  nlohmann::json report;
  try {
    report = train::bench_train(recipe, dataset_of(options, recipe), options.bench,
                                &models::find_family, nullptr, parallel.get());
  } catch (const std::exception& error) {
    parallel->leave(error.what());
    throw;
  }
  parallel->close();
  if (!parallel->first()) return 0;
  return write(report, options.json, train::bench_text(report));
}

int run_ablate(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe = recipe_of(options);
  const auto report = train::ablate(recipe, dataset_of(options, recipe), options.bench,
                                    options.only, &models::find_family);
  write(report, options.json, train::ablation_text(report));
  return report["agree"].get<bool>() ? 0 : static_cast<int>(ExitCode::kOther);
}

int run_agree(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe = recipe_of(options);
  const auto report = train::agree(recipe, options.against, dataset_of(options, recipe),
                                   options.bench, options.updates, &models::find_family);
  return write(report, options.json, train::agreement_text(report));
}

int run_sample(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe = recipe_of(options);
  const auto report = train::bench_sample(recipe, options.bench, &models::find_family);
  return write(report, options.json, train::bench_sample_text(report));
}

void add_recipe(CLI::App& command, Options& options) {
  command.add_option("config", options.config, "Recipe (YAML)")->required();
  command.add_option("overrides", options.overrides,
                     "Changes of the recipe, e.g. train.dtype=bf16");
  command.add_option("--json", options.json, "Write the report to this file; '-': standard output");
  command.add_option("--steps", options.bench.steps, "Timed steps")->check(CLI::Range(1, 100000));
  command.add_option("--warmup", options.bench.warmup, "Steps before them, captures included")
      ->check(CLI::Range(1, 100000));
  command.add_option("--synthetic", options.bench.synthetic_tokens,
                     "Random batches with this many text tokens per sample; the dataset is not "
                     "opened");
  command.add_flag("--preload", options.bench.preload,
                   "Make the dataset's batches before the clock starts: what remains is the step "
                   "without the data path");
  command.add_option("--images", options.bench.synthetic_images,
                     "Pictures per sample of random batches");
}

}  // namespace

void add_bench_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed; reports are JSON");
  bench->require_subcommand(1);
  auto options = std::make_shared<Options>();

  CLI::App* train = bench->add_subcommand(
      "train",
      "Training steps: samples/s, memory, GPU use; under a launcher (torchrun) of "
      "several processes");
  add_recipe(*train, *options);
  train->add_option("--profile-steps", options->bench.profile_steps,
                    "Profiled steps behind the timed ones; 0: none");
  train->add_option("--profile", options->bench.trace,
                    "Write a trace of the profiled steps for ui.perfetto.dev");
  train
      ->add_option("--find-batch", options->find_batch,
                   "Find the largest batch that fits, a multiple of this number")
      ->expected(0, 1)
      ->default_str("4");
  train->callback([options, &action] { action = [options] { return run_train(*options); }; });

  CLI::App* ablate = bench->add_subcommand(
      "ablate", "Turn each optimisation off in turn: what it is worth, and whether losses agree");
  add_recipe(*ablate, *options);
  ablate->add_option("--only", options->only, "Switches to try, e.g. perf.fused_norms");
  ablate->callback([options, &action] { action = [options] { return run_ablate(*options); }; });

  CLI::App* agree = bench->add_subcommand(
      "agree", "Loss and gradients of one batch under two settings, from equal weights");
  add_recipe(*agree, *options);
  agree->add_option("--against", options->against, "Changes of the other setting")->required();
  agree
      ->add_option("--updates", options->updates,
                   "Training steps on that batch before the two settings are compared")
      ->check(CLI::Range(0, 100000));
  agree->callback([options, &action] { action = [options] { return run_agree(*options); }; });

  CLI::App* sample = bench->add_subcommand("sample", "Latency of sampling one action chunk");
  add_recipe(*sample, *options);
  sample->callback([options, &action] { action = [options] { return run_sample(*options); }; });

  add_bench_collectives_command(*bench, action);
  add_bench_data_command(*bench, action);
  add_bench_ops_command(*bench, action);
  add_bench_scaling_command(*bench, action);
}

}  // namespace longship::apps
