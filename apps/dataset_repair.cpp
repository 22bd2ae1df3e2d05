// longship dataset repair: what can be mended safely, mended on demand.
#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "apps/dataset_write.h"
#include "data/lerobot/write/repair.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path;
  std::vector<int64_t> drop;
  bool timestamps = false;
  WriteArguments write;
};

int run(const Options& options) {
  data::lerobot::RepairOptions settings;
  settings.write = options.write.options();
  settings.write.timestamps = options.timestamps;
  settings.drop_episodes = options.drop;
  const auto summary = data::lerobot::repair_dataset(options.path, options.write.out, settings);
  for (const std::string& line : summary.mended) fmt::print("mended: {}\n", line);
  if (summary.mended.empty()) fmt::print("nothing had to be mended\n");
  print_summary(options.write.out, summary.written);
  return 0;
}

}  // namespace

void add_dataset_repair(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "repair", "Write a dataset anew with what can be mended safely put right");
  command->add_option("path", options->path, "Dataset folder")->required();
  add_write_arguments(*command, options->write);
  command->add_flag("--timestamps", options->timestamps,
                    "Give frame k of every episode the timestamp k / fps");
  command
      ->add_option("--drop-episodes", options->drop,
                   "Episodes to leave out; nothing about them is checked")
      ->delimiter(',');
  command->footer(
      "Mended: the order of rows, row ranges and data files of episodes, lengths, video spans that "
      "are all late by one time, counters, statistics. Each is named. What no rule can decide "
      "stays "
      "an error: all are listed, and nothing is written.");
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
