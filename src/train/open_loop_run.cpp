#include "train/open_loop_run.h"

#include <algorithm>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "data/split.h"
#include "runtime/device.h"
#include "train/session.h"

namespace longship::train {
namespace {

namespace fs = std::filesystem;

// Samples behind the mean-chunk baseline: the training episodes, or every episode that is not
// evaluated when the dataset is not the one of the training.
std::vector<int64_t> baseline_ids(const data::Dataset& dataset, const data::Split& split,
                                  const std::vector<int64_t>& evaluated, bool is_training_data) {
  if (is_training_data) return split.train_ids;
  std::vector<int64_t> others;
  for (int64_t i = 0; i < static_cast<int64_t>(dataset.episodes().size()); ++i) {
    if (std::find(evaluated.begin(), evaluated.end(), i) == evaluated.end()) others.push_back(i);
  }
  return data::sample_ids_of(dataset, others.empty() ? evaluated : others);
}

}  // namespace

OpenLoopReport run_open_loop(const OpenLoopRequest& request, const FamilyLookup& lookup) {
  LoadedCheckpoint checkpoint = read_checkpoint(request.checkpoint, lookup);
  Recipe& recipe = checkpoint.recipe;
  if (request.dataset) recipe.data.datasets.front().path = *request.dataset;
  const auto dataset = with_stats(open_dataset(recipe), checkpoint.stats);
  config::CountOrList val = recipe.data.val_episodes;
  if (request.dataset) val = {};
  const data::Split split = data::split_by_episode(*dataset, val);
  OpenLoopOptions options;
  options.episodes = parse_episodes(request.episodes, *dataset, split.val_episodes);
  options.train_ids = baseline_ids(*dataset, split, options.episodes, !request.dataset);
  options.draws = request.draws;
  options.batch = request.batch;
  options.seed = static_cast<uint64_t>(request.seed.value_or(recipe.train.seed));
  options.workers = recipe.data.workers;

  runtime::set_cpu_threads(static_cast<int>(recipe.train.threads));
  const at::Device device = runtime::parse_device(request.device);
  const auto policy = build_policy(checkpoint, *dataset, device);
  const auto transform = recipe.family->make_transform(*recipe.model, *dataset);
  transform->check_dataset(*dataset);
  log::info("open-loop evaluation of {} on {}: {} draws per frame", checkpoint.folder.string(),
            dataset->root().string(), options.draws);

  const InterruptGuard guard;
  const int64_t total =
      static_cast<int64_t>(data::sample_ids_of(*dataset, options.episodes).size());
  Progress progress("open-loop", total, "frames");
  options.progress = [&](int64_t done, int64_t) {
    progress.update(done);
    return !guard.interrupted();
  };
  OpenLoopReport report = evaluate_open_loop(*policy, *transform, *dataset, options);
  progress.finish();
  report.checkpoint = checkpoint.folder.string();
  report.dataset = recipe.data.datasets.front().path;
  fs::create_directories(request.out);
  write_file_atomic(request.out / "open_loop.json", to_json(report));
  write_file_atomic(request.out / "open_loop.svg", to_svg(report));
  log::info("{}", summary(report));
  log::info("  numbers {}", (request.out / "open_loop.json").string());
  log::info("  picture {}", (request.out / "open_loop.svg").string());
  return report;
}

}  // namespace longship::train
