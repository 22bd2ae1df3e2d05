#pragma once
// Videos against rows: presence of every frame, rate, size, spans.

#include <vector>

#include "data/checks.h"
#include "data/lerobot/layout.h"
#include "data/lerobot/reader_pool.h"

namespace longship::data::lerobot {

/// Size of the pictures of one video file, [height, width]; zeros when the file is unreadable.
struct PictureSize {
  int64_t height = 0, width = 0;
  bool operator==(const PictureSize&) const = default;
};

/// A warning where the declared size of a camera is not the real one. `fact` and `cure` name what
/// is real: "the stream is", "the stream wins".
void check_declared_shape(const CameraInfo& camera, const PictureSize& real, const char* fact,
                          const char* cure, Findings& findings);

/// Builds the packet table of every video (in several threads), decides the first frame of every
/// span (VideoSpan::first_frame), and compares with the declared lengths, rate and shapes. One size
/// per video file is returned.
std::vector<PictureSize> check_videos(Layout& layout, ReaderPool& pool, Findings& findings);

}  // namespace longship::data::lerobot
