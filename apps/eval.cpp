// longship eval: judges a checkpoint on recorded data.
#include "apps/eval.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "models/spec.h"
#include "train/checkpoint.h"
#include "train/open_loop_run.h"

namespace longship::apps {
namespace {

struct Options {
  train::OpenLoopRequest request;
  std::string checkpoint, dataset, out;
  int64_t seed = -1;
};

int run(Options options) {
  train::OpenLoopRequest& request = options.request;
  request.checkpoint = options.checkpoint;
  if (!options.dataset.empty()) {
    request.dataset = options.dataset;
    if (request.episodes == "val") request.episodes = "all";
  }
  if (options.seed >= 0) request.seed = options.seed;
  request.out = options.out;
  if (options.out.empty()) {
    // Beside the checkpoints, for a checkpoint is complete as it is and gets no further files.
    const std::filesystem::path folder =
        std::filesystem::weakly_canonical(train::resolve_checkpoint(options.checkpoint));
    request.out = folder.parent_path().filename() == "checkpoints"
                      ? folder.parent_path().parent_path() / "open_loop" / folder.filename()
                      : std::filesystem::path("open_loop");
  }
  train::run_open_loop(request, &models::find_family);
  return 0;
}

}  // namespace

void add_eval_command(CLI::App& app, std::function<int()>& action) {
  CLI::App* eval = app.add_subcommand("eval", "Judge a checkpoint on recorded data");
  eval->require_subcommand(1);
  auto options = std::make_shared<Options>();
  CLI::App* command = eval->add_subcommand(
      "open-loop",
      "Compare predicted with recorded action chunks, beside two baselines: repeating the current "
      "state (or the last action where their dimensions differ), and the mean chunk of the "
      "training "
      "episodes");
  train::OpenLoopRequest& request = options->request;
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "Checkpoint folder, or run folder (its newest valid one)")
      ->required();
  command->add_option("--dataset", options->dataset,
                      "Dataset folder; default: the one of the training. Of a mixture: the name or "
                      "path of one of its datasets");
  command->add_option(
      "--episodes", request.episodes,
      "val (those held out from training), all, last:N, or indices such as 21,22,23; "
      "default val, with --dataset all");
  command
      ->add_option("--draws", request.draws, "Chunks drawn per frame; their mean is the prediction")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--batch", request.batch, "Frames per batch")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the draws; default: train.seed of the run");
  command->add_option(
      "--out", options->out,
      "Folder for open_loop.json and open_loop.svg; default: open_loop/step_N in the run folder");
  command->add_option("--device", request.device, "auto, cpu, cuda or cuda:N")
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
