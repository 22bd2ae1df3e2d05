#include "train/open_loop_run.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/signals.h"
#include "data/mixture.h"
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
  if (is_training_data) return split.train_ids.to_vector();
  std::vector<int64_t> others;
  for (int64_t i = 0; i < static_cast<int64_t>(dataset.episodes().size()); ++i) {
    if (std::find(evaluated.begin(), evaluated.end(), i) == evaluated.end()) others.push_back(i);
  }
  return data::sample_ids_of(dataset, others.empty() ? evaluated : others);
}

// The dataset of a mixture that is meant, by name or path.
size_t chosen_part(const Recipe& recipe, const std::optional<std::string>& wanted) {
  const std::vector<std::string> names = recipe.data.names();
  if (!wanted && names.size() == 1) return 0;
  for (size_t i = 0; wanted && i < names.size(); ++i) {
    if (*wanted == names[i] || *wanted == recipe.data.datasets[i].path) return i;
  }
  throw ConfigError(fmt::format(
      "the checkpoint was trained on {} datasets, {}; say which to evaluate with --dataset NAME",
      names.size(), fmt::join(names, ", ")));
}

std::map<std::string, data::FeatureStats> stats_of_part(
    const std::map<std::string, data::FeatureStats>& all, const std::string& name) {
  std::map<std::string, data::FeatureStats> out;
  for (const auto& [key, stats] : all) {
    if (key.starts_with(name + "/")) out[key.substr(name.size() + 1)] = stats;
  }
  return out;
}

}  // namespace

OpenLoopReport run_open_loop(const OpenLoopRequest& request, const FamilyLookup& lookup) {
  LoadedCheckpoint checkpoint = read_checkpoint(request.checkpoint, lookup);
  Recipe& recipe = checkpoint.recipe;
  const bool is_mixture = recipe.data.is_mixture();
  if (request.dataset && !is_mixture) recipe.data.datasets.front().path = *request.dataset;
  const auto whole = open_dataset(recipe);
  const size_t part = is_mixture ? chosen_part(recipe, request.dataset) : 0;
  const auto* mixture = dynamic_cast<const data::MixtureDataset*>(whole.get());
  const auto dataset =
      mixture == nullptr ? with_stats(whole, checkpoint.stats)
                         : with_stats(mixture->parts()[part].dataset,
                                      stats_of_part(checkpoint.stats, mixture->parts()[part].name));
  const DatasetEntry& entry = recipe.data.datasets[part];
  const bool own_val = entry.val_episodes.is_list || entry.val_episodes.count != 0;
  config::CountOrList val = own_val ? entry.val_episodes : recipe.data.val_episodes;
  if (request.dataset && !is_mixture) val = {};  // episodes of another dataset
  const bool is_other = request.dataset && !is_mixture;
  const data::Split split =
      data::split_by_episode(*dataset, val, is_other ? std::vector<int64_t>{} : entry.episodes);
  OpenLoopOptions options;
  options.episodes = parse_episodes(request.episodes, *dataset, split.val_episodes);
  options.train_ids =
      baseline_ids(*dataset, split, options.episodes, is_mixture || !request.dataset);
  options.draws = request.draws;
  options.batch = request.batch;
  options.seed = static_cast<uint64_t>(request.seed.value_or(recipe.train.seed));
  options.workers = recipe.data.workers;

  runtime::set_cpu_threads(static_cast<int>(recipe.train.threads));
  const at::Device device = runtime::parse_device(request.device);
  const auto policy = build_policy(checkpoint, *whole, device);
  const auto transform = mixture == nullptr
                             ? recipe.family->make_transform(*recipe.model, *dataset)
                             : make_part_transform(recipe, *mixture, part, dataset.get());
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
  report.dataset = entry.path;
  fs::create_directories(request.out);
  write_file_atomic(request.out / "open_loop.json", to_json(report));
  write_file_atomic(request.out / "open_loop.svg", to_svg(report));
  log::info("{}", summary(report));
  log::info("  numbers {}", (request.out / "open_loop.json").string());
  log::info("  picture {}", (request.out / "open_loop.svg").string());
  return report;
}

}  // namespace longship::train
