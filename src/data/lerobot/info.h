#pragma once
// meta/info.json: version, rate, features, where files lie.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/checks.h"
#include "data/dataset.h"

namespace longship::data::lerobot {

enum class Version { kV20, kV21, kV30 };

/// A camera as info.json declares it. Sizes are 0 when not declared.
struct CameraInfo {
  std::string name;
  bool is_video = true;  // false: pictures inside the tables
  bool is_depth = false;
  int64_t height = 0, width = 0;
};

struct Info {
  Version version = Version::kV30;
  std::string version_text;
  double fps = 0;
  int64_t chunks_size = 1000;  // episodes per folder, v2.x
  std::string data_path, video_path;
  std::optional<int64_t> total_episodes, total_frames;
  std::vector<Feature> features;    // in the order of the file, without those of width 0
  std::vector<CameraInfo> cameras;  // video and image features, in that order
};

/// Reads meta/info.json. Returns nothing when reading on makes no sense (errors are in `findings`
/// then); other faults, a missing fps for instance, are reported and reading goes on.
std::optional<Info> read_info(const std::filesystem::path& root, Findings& findings);

using TemplateValue = std::variant<int64_t, std::string>;

/// Fills "{name}" and "{name:03d}" of a path template. Throws DataError for an unknown name, an
/// unknown format, or a result that leaves the dataset's folder.
std::string fill_template(std::string_view text,
                          const std::map<std::string, TemplateValue>& values);

}  // namespace longship::data::lerobot
