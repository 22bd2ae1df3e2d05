#pragma once
// A LeRobot dataset read and judged: what opening it, validating it and writing a new one from it
// share.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/checks.h"
#include "data/dataset.h"
#include "data/lerobot/check_videos.h"
#include "data/lerobot/image_columns.h"
#include "data/lerobot/layout.h"
#include "data/lerobot/reader_pool.h"
#include "data/lerobot/table.h"

namespace longship::data::lerobot {

/// Everything that opening a dataset finds out.
struct Opened {
  Layout layout;
  Table table;
  std::unique_ptr<ReaderPool> pool;
  std::unique_ptr<ImageColumns> images;
  std::vector<PictureSize> sizes;  // one per video file
  std::map<std::string, FeatureStats> stats;
};

/// A pool over the video files of a layout, nothing opened yet.
std::unique_ptr<ReaderPool> make_pool(const Layout& layout,
                                      io::VideoDecoder decoder = io::VideoDecoder::kCpu);

/// Reads metadata and numeric columns and runs every check that decodes no pictures. Faults go to
/// `findings`; nothing is returned when the metadata are too broken to read on.
std::optional<Opened> inspect(const std::filesystem::path& root, const OpenOptions& options,
                              Findings& findings);

/// The checks of inspect() behind the metadata, on a layout and a table that are in memory.
void judge(Opened& opened, const OpenOptions& options, Findings& findings);

}  // namespace longship::data::lerobot
