#pragma once
// New datasets of LeRobot's format v3.0 from existing ones: converted, parts of them, several
// together, mended. Pictures are never encoded again.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "data/lerobot/write/plan.h"

namespace longship::data::lerobot {

struct WriteSummary {
  int64_t num_episodes = 0, num_frames = 0, num_tasks = 0;
  int64_t num_data_files = 0, num_video_files = 0;
};

/// Writes the selected episodes, in order, as a new dataset at `target`, which must not exist yet.
/// It appears whole or not at all, and is opened and checked before it appears. Throws DataError.
WriteSummary write_dataset(const std::filesystem::path& target,
                           std::span<const Selection> selections, const WriteOptions& options);

/// v2.0, v2.1 or v3.0 -> v3.0, all episodes.
WriteSummary convert_dataset(const std::filesystem::path& source,
                             const std::filesystem::path& target, const WriteOptions& options);

/// The episodes with these episode_index, in rising order. Throws DataError for one that does not
/// exist or is empty.
WriteSummary split_dataset(const std::filesystem::path& source, const std::filesystem::path& target,
                           const std::vector<int64_t>& episodes, const WriteOptions& options);

/// All episodes of all sources, in order. Rate, robot type and features must be the same.
WriteSummary merge_datasets(std::span<const std::filesystem::path> sources,
                            const std::filesystem::path& target, const WriteOptions& options);

}  // namespace longship::data::lerobot
