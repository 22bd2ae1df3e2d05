#pragma once
// Which slot of the category-specific layers belongs to a robot. Source: Isaac-GR00T
// processing_gr00t_n1d6.py and processing_gr00t_n1d7.py, EMBODIMENT_TAG_TO_PROJECTOR_INDEX.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/groot/config.h"

namespace longship::models {

/// The slot that fine-tuning on a robot of one's own uses.
inline constexpr int64_t kGrootNewEmbodiment = 10;

struct GrootEmbodiment {
  int64_t slot = kGrootNewEmbodiment;
  /// For the caller's log; empty when the tag is known.
  std::string warning;
};

/// {tag: slot} of a checkpoint's embodiment_id.json, slots 0 .. `slots` - 1. Throws DataError
/// naming file and key.
std::map<std::string, int64_t> read_groot_embodiment_ids(const std::filesystem::path& path,
                                                         int64_t slots);

/// Slot of a tag: as `ids` (of a checkpoint, may be empty) says, else the published one of the
/// version, else kGrootNewEmbodiment with a warning.
GrootEmbodiment groot_embodiment(GrootVersion version, const std::string& tag,
                                 const std::map<std::string, int64_t>& ids);

}  // namespace longship::models
