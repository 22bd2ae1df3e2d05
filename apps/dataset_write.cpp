#include "apps/dataset_write.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace longship::apps {

data::lerobot::WriteOptions WriteArguments::options() const {
  data::lerobot::WriteOptions options;
  options.data_file_bytes = data_file_mb << 20;
  options.video_file_bytes = video_file_mb << 20;
  options.files_per_chunk = files_per_chunk;
  options.pixels = pixels;
  return options;
}

void add_write_arguments(CLI::App& command, WriteArguments& arguments) {
  command.add_option("--out", arguments.out, "Folder of the new dataset; must not exist")
      ->required();
  command
      .add_option("--data-file-mb", arguments.data_file_mb, "A new table begins beyond this, MiB")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command
      .add_option("--video-file-mb", arguments.video_file_mb, "A new video begins beyond this, MiB")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--chunk-files", arguments.files_per_chunk, "Files per folder")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command.add_flag("--pixels", arguments.pixels,
                   "Compute the statistics of cameras from every picture (decodes all); default: "
                   "those that the source stores for each episode");
}

void print_summary(const std::string& out, const data::lerobot::WriteSummary& summary) {
  fmt::print("{}: {} episodes, {} frames, {} tasks; {} tables, {} videos\n", out,
             with_thousands(summary.num_episodes), with_thousands(summary.num_frames),
             summary.num_tasks, summary.num_data_files, summary.num_video_files);
}

}  // namespace longship::apps
