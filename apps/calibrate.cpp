// longship calibrate: chooses the layers that multiply in FP8.
#include "apps/calibrate.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/log.h"
#include "models/spec.h"
#include "train/calibrate.h"
#include "train/recipe.h"
#include "train/session.h"

namespace longship::apps {
namespace {

struct Options {
  std::string config, out;
  std::vector<std::string> overrides;
  train::BenchOptions batch;
  train::CalibrateOptions calibrate;
};

int run(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe =
      train::load_recipe(options.config, options.overrides, &models::find_family);
  const auto dataset = options.batch.synthetic_tokens ? nullptr : train::open_dataset(recipe);
  const auto table =
      train::calibrate(recipe, dataset, options.batch, options.calibrate, &models::find_family);
  write_file_atomic(options.out, table.dump(1) + "\n");
  fmt::print("{}{}: use it with train.fp8={}\n", train::calibration_text(table), options.out,
             options.out);
  return 0;
}

}  // namespace

void add_calibrate_command(CLI::App& app, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("calibrate", "Choose the layers that multiply in FP8, by measurement");
  command->add_option("config", options->config, "Recipe (YAML)")->required();
  command->add_option("overrides", options->overrides, "Changes, e.g. train.global_batch=8");
  command->add_option("--out", options->out, "The table to write (JSON)")->required();
  command->add_option("--synthetic", options->batch.synthetic_tokens,
                      "A random batch with this many text tokens per sample");
  command->add_option("--images", options->batch.synthetic_images,
                      "Pictures per sample of a random batch");
  command->add_option("--min-cosine", options->calibrate.min_cosine,
                      "Least cosine between a layer's FP8 and bf16 gradients");
  command->add_option("--max-error", options->calibrate.max_output_error,
                      "Largest relative L2 error of a layer's output");
  command->add_option("--min-speedup", options->calibrate.min_speedup,
                      "Least gain in time, forward and backward");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
