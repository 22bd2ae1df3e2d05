// longship dataset merge: several datasets as one.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "apps/dataset_write.h"

namespace longship::apps {
namespace {

struct Options {
  std::vector<std::string> paths;
  WriteArguments write;
};

}  // namespace

void add_dataset_merge(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "merge", "Write several datasets as one; pictures are not encoded again");
  command->add_option("paths", options->paths, "Dataset folders, in order")
      ->required()
      ->expected(2, 100000);
  add_write_arguments(*command, options->write);
  command->footer(
      "Rate, robot type and features must be the same: every difference is listed. Tasks "
      "with one text become one; statistics are computed from all rows.");
  command->callback([options, &action] {
    action = [options] {
      const std::vector<std::filesystem::path> paths(options->paths.begin(), options->paths.end());
      print_summary(options->write.out, data::lerobot::merge_datasets(paths, options->write.out,
                                                                      options->write.options()));
      return 0;
    };
  });
}

}  // namespace longship::apps
