#pragma once
// Which slot of the category-specific layers belongs to a robot. Source: Isaac-GR00T
// processing_gr00t_n1d6.py and processing_gr00t_n1d7.py, EMBODIMENT_TAG_TO_PROJECTOR_INDEX.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "data/dataset.h"
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
/// {tag: slot} of the embodiment_id.json in groot_description_folder(), else of that beside
/// model.checkpoint; empty without one. Throws DataError for a broken file.
std::map<std::string, int64_t> groot_checkpoint_ids(const GrootConfig& config);
/// Slot of model.embodiment, by groot_checkpoint_ids() where they have it.
/// Throws ConfigError for a slot that the model does not have, DataError for a broken file.
GrootEmbodiment groot_embodiment(const GrootConfig& config);

/// {tag: slot} as published for the version, without those that are patterns of tags.
std::map<std::string, int64_t> groot_published_ids(GrootVersion version);

/// Slot of a sample: that of its dataset (RawSample::embodiment), or `own` where that is 0. Throws
/// ConfigError naming it where the model has not so many.
int64_t groot_sample_slot(int64_t embodiment, int64_t own, int64_t slots);
/// Slots of all samples of a dataset or mixture, ascending. Throws ConfigError.
std::vector<int64_t> groot_dataset_slots(const GrootConfig& config, const data::Dataset& dataset);
/// "10 (new_embodiment)": a slot with the tags that are published for it.
std::string groot_slot_text(GrootVersion version, int64_t slot);

}  // namespace longship::models
