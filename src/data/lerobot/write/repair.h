#pragma once
// A damaged dataset mended as far as that is safe, as a new one.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/lerobot/write/dataset_writer.h"

namespace longship::data::lerobot {

struct RepairOptions {
  WriteOptions write;
  /// episode_index of episodes to leave out; nothing about them is checked.
  std::vector<int64_t> drop_episodes;
};

struct RepairSummary {
  WriteSummary written;
  std::vector<std::string> mended;  // one line each
};

/// Writes a v3.0 dataset at `target` with these things put right:
/// - rows out of order: sorted by `index` (v3.0) and, within an episode, by `frame_index`;
/// - row ranges and data files of v3.0 that disagree with the column episode_index: taken from it;
///   an episode that has no row at all is left out;
/// - a declared length that is not the number of rows: the rows decide (the videos must have as
///   many frames);
/// - video spans of v3.0 that are all late by one time: that time is subtracted;
/// - counters, task lists, fps written as text, metadata with odd line ends: written anew;
/// - statistics: computed from the rows;
/// - with WriteOptions::timestamps, timestamps: frame k gets k / fps.
/// What no rule can decide stays an error: throws one DataError that lists all of them, and writes
/// nothing.
RepairSummary repair_dataset(const std::filesystem::path& source,
                             const std::filesystem::path& target, const RepairOptions& options);

}  // namespace longship::data::lerobot
