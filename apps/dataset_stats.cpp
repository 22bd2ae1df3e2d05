// longship dataset stats: statistics for stats.json.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/strings.h"
#include "data/lerobot/dataset_stats.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path, out, mask;
  data::lerobot::StatsRequest request;
  int64_t memory_mb = 1024;
  bool json = false;
};

void print_feature(const data::lerobot::FeatureResult& feature) {
  const data::FullStats& s = feature.stats;
  fmt::print("\n{} ({} {}{})\n  {:>5} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
             feature.name, with_thousands(s.count), feature.is_camera ? "frames" : "rows",
             s.skipped > 0 ? fmt::format(", {} left out for NaN or infinity", s.skipped) : "",
             "dim", "min", "q01", "mean", "q50", "q99", "max", "std");
  for (size_t d = 0; d < s.min.size(); ++d) {
    fmt::print("  {:>5} {:>12.6g} {:>12.6g} {:>12.6g} {:>12.6g} {:>12.6g} {:>12.6g} {:>12.6g}\n", d,
               s.min[d], s.quantiles[0][d], s.mean[d], s.quantiles[2][d], s.quantiles[4][d],
               s.max[d], s.std[d]);
  }
}

int run(const Options& options) {
  data::lerobot::StatsRequest request = options.request;
  if (!options.mask.empty()) request.delta_mask = data::lerobot::parse_delta_mask(options.mask);
  request.memory_bytes = options.memory_mb << 20;
  std::unique_ptr<Progress> progress;
  int64_t last = 0;
  request.progress = [&](int64_t done, int64_t total) {
    // Rows first, then pictures: a bar of its own.
    if (progress == nullptr || done < last) {
      progress = std::make_unique<Progress>("stats", total, "frame");
    }
    last = done;
    progress->update(done);
  };
  const data::lerobot::StatsResult result = data::lerobot::dataset_stats(options.path, request);
  progress.reset();
  if (!result.exact) {
    log::info(
        "the values take {}, more than --memory-mb: quantiles are within 0.025 % of their "
        "exact values, the rest is exact",
        human_bytes(static_cast<uint64_t>(result.value_bytes)));
  }
  const std::string json = data::lerobot::stats_json(result);
  if (!options.out.empty()) {
    write_file_atomic(options.out, json, ExitCode::kData);
    fmt::print("{}: statistics of {} features\n", options.out, result.features.size());
  } else if (options.json) {
    fmt::print("{}", json);
  } else {
    for (const auto& feature : result.features) print_feature(feature);
  }
  return 0;
}

}  // namespace

void add_dataset_stats(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  data::lerobot::StatsRequest& request = options->request;
  CLI::App* command = group.add_subcommand(
      "stats", "Compute statistics with quantiles in one pass, several tables at once");
  command->add_option("path", options->path, "Dataset folder")->required();
  command->add_option("--out", options->out, "Write them in the format of meta/stats.json");
  command->add_flag("--json", options->json, "Print that format");
  command->add_option("--columns", request.columns, "Numeric features; default: all")
      ->delimiter(',');
  command
      ->add_option("--horizon", request.horizon,
                   "Statistics of the actions over chunks of this many frames, repeats behind "
                   "the episode's end included, as openpi computes them; 0 = over rows")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_option("--delta-mask", options->mask,
                      "With --horizon: dimensions that are relative to the state of the chunk's "
                      "first frame, as runs: 6,-1,6,-1 = six relative, one absolute, ...");
  command->add_option("--action", request.action, "The column of actions")->capture_default_str();
  command->add_option("--state", request.state, "The column of states")->capture_default_str();
  command->add_flag("--pixels", request.pixels, "Cameras too, from every picture");
  command
      ->add_option("--memory-mb", options->memory_mb,
                   "Quantiles are exact while the values take no more than this, else within "
                   "0.025 % of their exact values")
      ->check(CLI::Range(0, 10000000))
      ->capture_default_str();
  command->add_option("--threads", request.threads, "Threads; 0 = one per processor")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
