#pragma once
// Checks that read every byte: pictures, tables, statistics, files.

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "data/checks.h"
#include "data/lerobot/opened.h"
#include "data/stats_pass.h"

namespace longship::data::lerobot {

/// What decoding found out about one camera.
struct CameraPixels {
  PixelStats stats;
  int64_t num_frames = 0;
};

/// Decodes every frame that an episode uses, on several threads, one video file each. Reports
/// damaged frames, and cameras that are frozen while the state moves, black, or of one colour.
/// Returns the pixels of every colour camera. `progress` is called with frames done and in all.
std::map<std::string, CameraPixels> check_pictures(
    const Opened& opened, int64_t threads, const std::function<void(int64_t, int64_t)>& progress,
    Findings& findings);

/// Reads every column of every table, also those that no feature names: damaged pages, columns that
/// are not listed in info.json.
void check_tables(const Opened& opened, int64_t threads, Findings& findings);

/// Stored statistics against the rows (all numeric features) and the pictures.
void check_stored_stats(const Opened& opened, const std::map<std::string, CameraPixels>& pixels,
                        Findings& findings);

/// Tables and videos below data/ and videos/ that no episode uses.
void check_unused_files(const Layout& layout, Findings& findings);

/// Task texts that are empty, the same under two numbers, or used by no row.
void check_task_texts(const Opened& opened, Findings& findings);

}  // namespace longship::data::lerobot
