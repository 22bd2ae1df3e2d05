#pragma once
// What the commands that write a new dataset share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "data/lerobot/write/dataset_writer.h"

namespace longship::apps {

struct WriteArguments {
  std::string out;
  int64_t data_file_mb = 100, video_file_mb = 200, files_per_chunk = 1000;
  bool pixels = false;

  data::lerobot::WriteOptions options() const;
};

void add_write_arguments(CLI::App& command, WriteArguments& arguments);
/// "NEW: 24 episodes, 2,652 frames, ...".
void print_summary(const std::string& out, const data::lerobot::WriteSummary& summary);

}  // namespace longship::apps
