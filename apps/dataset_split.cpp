// longship dataset split: some episodes as a dataset of their own.
#include <memory>
#include <string>
#include <vector>

#include "apps/dataset.h"
#include "apps/dataset_write.h"
#include "base/error.h"
#include "base/strings.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path, episodes;
  WriteArguments write;
};

int64_t parse_number(std::string_view text, std::string_view all) {
  const std::optional<int64_t> value = parse_whole_number(text);
  LS_CHECK(value && *value >= 0, ConfigError,
           "--episodes: '{}' in '{}' is no episode; write numbers and ranges such as 0,3,5-9", text,
           all);
  return *value;
}

std::vector<int64_t> parse_episodes(const std::string& text) {
  std::vector<int64_t> episodes;
  for (const std::string& part : split(text, ',')) {
    const std::string_view item = trim(part);
    const size_t dash = item.find('-', 1);
    const int64_t first = parse_number(item.substr(0, dash), text);
    const int64_t last =
        dash == std::string_view::npos ? first : parse_number(item.substr(dash + 1), text);
    LS_CHECK(first <= last && last - first < 100'000'000, ConfigError,
             "--episodes: the range '{}' runs backwards or is too long", item);
    for (int64_t e = first; e <= last; ++e) episodes.push_back(e);
  }
  return episodes;
}

}  // namespace

void add_dataset_split(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "split", "Write some episodes as a dataset of their own; pictures are not encoded again");
  command->add_option("path", options->path, "Dataset folder")->required();
  command->add_option("--episodes", options->episodes, "Episodes, e.g. 0,3,5-9")->required();
  add_write_arguments(*command, options->write);
  command->footer(
      "Episodes are numbered from 0 in the new dataset, in rising order of their old "
      "numbers; tasks that none of them has are left out.");
  command->callback([options, &action] {
    action = [options] {
      print_summary(options->write.out,
                    data::lerobot::split_dataset(options->path, options->write.out,
                                                 parse_episodes(options->episodes),
                                                 options->write.options()));
      return 0;
    };
  });
}

}  // namespace longship::apps
