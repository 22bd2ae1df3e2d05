// longship bench scaling: memory, bytes and predicted times of a recipe on many GPUs.
#include "apps/bench_scaling.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench_report.h"
#include "base/log.h"
#include "models/spec.h"
#include "train/bench_scaling.h"
#include "train/recipe.h"

namespace longship::apps {
namespace {

struct Options {
  std::string config;
  std::vector<std::string> overrides;
  std::string json;
  train::ScalingOptions scaling;
};

int run(const Options& options) {
  log::init(log::Level::kInfo);
  const train::Recipe recipe =
      train::load_recipe(options.config, options.overrides, &models::find_family);
  const nlohmann::json report = train::bench_scaling(recipe, options.scaling);
  return put_report(report, options.json, train::bench_scaling_text(report));
}

}  // namespace

void add_bench_scaling_command(CLI::App& bench, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "scaling", "Memory, bytes and predicted times of a recipe on many GPUs, by strategy");
  command->add_option("config", options->config, "Recipe (YAML)")->required();
  command->add_option("overrides", options->overrides,
                      "Changes of the recipe, e.g. parallel.reduce_dtype=bf16");
  command->add_option("--json", options->json,
                      "Write the report to this file; '-': standard output, and nothing else");
  // One word, so that overrides may follow it.
  command
      ->add_option_function<std::string>(
          "--gpus",
          [options](const std::string& text) {
            options->scaling.gpus = numbers_of("--gpus", text, 1, "number of GPUs");
          },
          "Numbers of GPUs, e.g. 8,64,1024")
      ->default_str("8,64,1024");
  command->add_option("--per-node", options->scaling.per_node, "GPUs of a node")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--step-ms", options->scaling.step_ms,
                   "Measured step of one GPU (bench train); without it there are no times")
      ->check(CLI::PositiveNumber);
  command
      ->add_option_function<double>(
          "--nvlink-gb-s",
          [options](double value) {
            options->scaling.constants.nvlink_gb_s = value;
            options->scaling.constants.peer_gb_s = value;
          },
          "GB/s that a GPU sends inside a node while it computes")
      ->check(CLI::PositiveNumber)
      ->default_str(fmt::format("{:g}, or {:g} with parallel.transport=nccl",
                                options->scaling.constants.peer_gb_s,
                                options->scaling.constants.nvlink_gb_s));
  command
      ->add_option("--network-gb-s", options->scaling.constants.network_gb_s,
                   "GB/s of the network adapter of each GPU")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->footer(
      "Weak scaling: train.global_batch of the recipe counts the samples of ONE GPU here, and "
      "every "
      "GPU has as many. All strategies are shown; parallel.reduce_dtype and bucket_mb need one "
      "chosen (parallel.strategy=ddp), whichever. Nothing is measured: docs/scaling.md says what "
      "the times are made of and how far they can be trusted.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
