// longship bench data: samples per second of the data path, by threads and by stage.
#include "apps/bench_data.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "base/error.h"
#include "base/log.h"
#include "data/lerobot/lerobot_dataset.h"
#include "models/spec.h"
#include "train/bench_data.h"
#include "train/recipe.h"
#include "train/session.h"

namespace longship::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string json;
  bool dataset_only = false;
  train::DataBenchOptions bench;
};

nlohmann::json measure(const Options& options) {
  if (std::filesystem::is_directory(options.config)) {
    LS_CHECK(options.overrides.empty(), ConfigError,
             "{}: a dataset folder takes no changes of a recipe ('{}')", options.config,
             options.overrides.front());
    return train::bench_dataset(*data::open_lerobot(options.config), options.bench);
  }
  const train::Recipe recipe =
      train::load_recipe(options.config, options.overrides, &models::find_family);
  const std::shared_ptr<const data::Dataset> dataset = train::open_dataset(recipe);
  if (options.dataset_only) return train::bench_dataset(*dataset, options.bench);
  return train::bench_feed(recipe, dataset, options.bench, &models::find_family);
}

int run(const Options& options) {
  log::init(log::Level::kInfo);
  const nlohmann::json report = measure(options);
  return put_report(report, options.json, train::bench_data_text(report));
}

}  // namespace

void add_bench_data_command(CLI::App& bench, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("data", "Samples/s of the data path, by threads and by stage");
  command->add_option("config", options->config, "Recipe (YAML), or the folder of a dataset")
      ->required();
  command->add_option("overrides", options->overrides,
                      "Changes of the recipe, e.g. train.global_batch=64");
  command->add_option("--json", options->json,
                      "Write the report to this file; '-': standard output, and nothing else");
  command->add_flag("--dataset-only", options->dataset_only,
                    "Without the model: one frame per camera and an action chunk per sample");
  // One word, so that overrides may follow it.
  command
      ->add_option_function<std::string>(
          "--threads",
          [options](const std::string& text) {
            options->bench.threads =
                numbers_of("--threads", text, std::numeric_limits<int64_t>::min(), "whole number");
          },
          "Numbers of worker threads to measure, e.g. 1,2,4")
      ->default_str("1,2");
  command->add_option("--seconds", options->bench.seconds, "Length of a window")
      ->capture_default_str();
  command->add_option("--windows", options->bench.windows, "Windows per number of threads")
      ->capture_default_str();
  command->add_option("--batch", options->bench.batch, "Samples per batch, without the model")
      ->capture_default_str();
  command->add_option("--chunk", options->bench.chunk, "Action steps per sample, without the model")
      ->capture_default_str();
  command->footer(
      "Samples are read in random order. CPU times are of this program alone; 'other processes' "
      "tells how far the rates can be trusted.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
