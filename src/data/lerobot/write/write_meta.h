#pragma once
// The metadata of a new v3.0 dataset.

#include <filesystem>

#include "data/lerobot/write/plan.h"
#include "data/lerobot/write/write_files.h"

namespace longship::data::lerobot {

/// meta/tasks.parquet, meta/episodes, meta/stats.json, meta/info.json, as lerobot 0.4 writes them.
void write_metadata(const std::filesystem::path& target, const Plan& plan,
                    const WrittenStats& stats);

}  // namespace longship::data::lerobot
