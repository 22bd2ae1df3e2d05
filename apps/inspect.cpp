// longship inspect: tells what a path is and hands it to the right describer.
#include "apps/inspect.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "apps/inspect_dataset.h"
#include "apps/inspect_weights.h"
#include "base/error.h"

namespace longship::apps {
namespace {

namespace fs = std::filesystem;

bool looks_like_weights(const fs::path& path) {
  return fs::exists(path / "model.safetensors") ||
         fs::exists(path / "model.safetensors.index.json");
}

/// A run folder points to its newest checkpoint through `latest`.
fs::path newest_checkpoint(const fs::path& run) {
  const fs::path latest = run / "latest";
  if (fs::is_directory(latest)) return fs::canonical(latest);
  return {};
}

int inspect(const fs::path& path, bool list_all, bool json) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  LS_CHECK(fs::exists(status), DataError, "{}: no such file or folder", path.string());
  if (fs::is_directory(status)) {
    if (looks_like_weights(path)) return inspect_weights(path, list_all, json);
    if (const fs::path checkpoint = newest_checkpoint(path); !checkpoint.empty()) {
      return inspect_weights(checkpoint, list_all, json);
    }
    return inspect_dataset(path, json);
  }
  LS_CHECK(path.extension() == ".safetensors" || path.string().ends_with(".safetensors.index.json"),
           ConfigError,
           "{}: not something longship can describe; give a dataset folder, a run or checkpoint "
           "folder, or a .safetensors file",
           path.string());
  return inspect_weights(path, list_all, json);
}

}  // namespace

void add_inspect_command(CLI::App& app, std::function<int()>& action) {
  struct Options {
    std::string path;
    bool all = false;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Describe a dataset, a run, a checkpoint or a .safetensors file");
  command
      ->add_option("path", options->path,
                   "Dataset folder, run folder, checkpoint folder or .safetensors file")
      ->required();
  command->add_flag("--all", options->all, "List every tensor instead of one line per group");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &action] {
    action = [options] { return inspect(options->path, options->all, options->json); };
  });
}

}  // namespace longship::apps
