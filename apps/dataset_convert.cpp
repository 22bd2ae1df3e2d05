// longship dataset convert: v2.0, v2.1 -> v3.0 without encoding again.
#include <memory>
#include <string>

#include "apps/dataset.h"
#include "apps/dataset_write.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path;
  WriteArguments write;
};

}  // namespace

void add_dataset_convert(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "convert",
      "Write a dataset in format v3.0; pictures are not encoded again and stay the same bit for "
      "bit");
  command
      ->add_option("path", options->path,
                   "Dataset folder: v2.0, v2.1, or v3.0 to lay it out "
                   "anew")
      ->required();
  add_write_arguments(*command, options->write);
  command->callback([options, &action] {
    action = [options] {
      print_summary(options->write.out,
                    data::lerobot::convert_dataset(options->path, options->write.out,
                                                   options->write.options()));
      return 0;
    };
  });
}

}  // namespace longship::apps
