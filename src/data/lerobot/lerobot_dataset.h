#pragma once
// LeRobot datasets, formats v3.0, v2.1 and v2.0, without any Python: tables through Arrow, pictures
// through FFmpeg.
//
// Which picture belongs to a row: row k of an episode is the displayed frame k of the episode's
// span in its video. In v2.x the span is the whole file; in v3.0 it starts at round(from_timestamp
// * stream rate). For clean recordings this is the frame the official reader returns,
// round((from_timestamp + timestamp) * average rate), and it stays right where timestamps jitter,
// drift or repeat. Timestamps are checked against the rule and never used to pick a frame.

#include <filesystem>
#include <memory>

#include "data/checks.h"
#include "data/dataset.h"

namespace longship::data {

/// Opens a LeRobot dataset: reads metadata and numeric columns into memory (float32), checks
/// everything that can be checked without decoding pictures, and throws ONE DataError with every
/// fault found. Warnings go to the log. Pictures are decoded on demand in the calling thread.
std::unique_ptr<Dataset> open_lerobot(const std::filesystem::path& root,
                                      const OpenOptions& options = {});

}  // namespace longship::data
