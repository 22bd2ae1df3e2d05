#pragma once
// Where the rows and frames of each episode lie, as the metadata say.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/checks.h"
#include "data/lerobot/info.h"

namespace longship::data::lerobot {

/// Frames of one episode in one camera's video.
struct VideoSpan {
  int64_t file = -1;        // into Layout::video_files, -1 when the camera has no video
  double from_s = 0;        // as the metadata say; 0 in v2.x
  double to_s = 0;          // v3.0 only
  int64_t first_frame = 0;  // filled by check_videos
};

struct EpisodeRecord {
  int64_t index = 0;
  int64_t length = 0;  // as declared
  std::vector<std::string> tasks;
  bool has_tasks = false;
  int64_t data_file = -1;  // into Layout::data_files
  // Rows of the episode, counted over all data files in order. v3.0: as declared. v2.x: filled by
  // read_table.
  int64_t row_begin = 0, row_end = 0;
  std::vector<VideoSpan> spans;  // one per camera, in the order of Info::cameras
};

/// Larger task numbers are taken for damage: tasks are kept in a vector by number.
inline constexpr int64_t kMaxTaskIndex = 10'000'000;

struct DataFile {
  std::string path;  // relative to the dataset
  bool exists = true;
};

struct VideoFile {
  std::string path;   // relative to the dataset
  size_t camera = 0;  // into Info::cameras
  bool exists = true;
};

struct Layout {
  std::filesystem::path root;
  Info info;
  std::map<int64_t, std::string> tasks;  // by task_index
  std::vector<EpisodeRecord> episodes;   // by rising episode_index
  std::vector<DataFile> data_files;      // in the order in which rows are counted
  std::vector<VideoFile> video_files;

  bool is_v3() const { return info.version == Version::kV30; }
};

/// Reads all metadata and lists every missing file. Returns nothing when the metadata are too
/// broken to read on.
std::optional<Layout> read_layout(const std::filesystem::path& root, Findings& findings);

/// The parts of read_layout: the metadata as they are; what they say about files and counters.
/// Episodes are sorted by their index.
std::optional<Layout> parse_layout(const std::filesystem::path& root, Findings& findings);
void check_layout(Layout& layout, Findings& findings);

/// Format-specific parts of parse_layout: tasks, episodes, files. Return false when reading on
/// makes no sense.
bool read_layout_v2(Layout& layout, Findings& findings);
bool read_layout_v3(Layout& layout, Findings& findings);

/// "episode 3" or "episodes 0..2, 7" for the episodes that satisfy `belongs`; "no episode" when
/// none does.
std::string episodes_text(const Layout& layout,
                          const std::function<bool(const EpisodeRecord&)>& belongs);

}  // namespace longship::data::lerobot
