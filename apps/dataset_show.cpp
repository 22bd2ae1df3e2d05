// longship dataset show: one episode as a picture.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "apps/dataset.h"
#include "base/error.h"
#include "base/fs.h"
#include "data/episode_sheet.h"
#include "data/lerobot/lerobot_dataset.h"

namespace longship::apps {
namespace {

struct Options {
  std::string path, out;
  int64_t episode = 0;
  data::SheetOptions sheet;
};

int run(const Options& options) {
  LS_CHECK(std::filesystem::path(options.out).extension() == ".svg", ConfigError,
           "--out: '{}' must end in .svg; a browser opens it, rsvg-convert makes a PNG of it",
           options.out);
  const auto dataset = data::open_lerobot(options.path);
  const auto& episodes = dataset->episodes();
  const auto found =
      std::find_if(episodes.begin(), episodes.end(),
                   [&](const data::Episode& episode) { return episode.index == options.episode; });
  LS_CHECK(found != episodes.end(), ConfigError,
           "--episode: there is no episode {} in {}; it has {} episodes, {} .. {}", options.episode,
           options.path, episodes.size(), episodes.front().index, episodes.back().index);
  write_file_atomic(options.out,
                    data::episode_sheet(*dataset, found - episodes.begin(), options.sheet),
                    ExitCode::kData);
  fmt::print("{}: episode {} of {}, {} frames\n", options.out, options.episode, options.path,
             found->length);
  return 0;
}

}  // namespace

void add_dataset_show(CLI::App& group, std::function<int()>& action) {
  auto options = std::make_shared<Options>();
  CLI::App* command = group.add_subcommand(
      "show", "Draw one episode: pictures of every camera over curves of state and action");
  command->add_option("path", options->path, "Dataset folder")->required();
  command->add_option("--episode", options->episode, "episode_index")->capture_default_str();
  command->add_option("--out", options->out, "SVG file, pictures inside")->required();
  command->add_option("--pictures", options->sheet.pictures, "Pictures per camera")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--state", options->sheet.state, "The column of states")
      ->capture_default_str();
  command->add_option("--action", options->sheet.action, "The column of actions")
      ->capture_default_str();
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace longship::apps
