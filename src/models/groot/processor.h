#pragma once
// How a checkpoint's files describe robots: processor_config.json and statistics.json in
// groot_description_folder(), under the tags of embodiments. Torch-free. Source: Isaac-GR00T
// processing_gr00t_n1d6.py and processing_gr00t_n1d7.py, from_pretrained().

#include <cstdint>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "models/groot/config.h"
#include "models/groot/state_action.h"

namespace longship::models {

/// The robot of a dataset's samples.
struct GrootRobot {
  std::string tag;
  int64_t slot = 0;
};

/// model.embodiment, or where the dataset's samples say another slot (data.datasets.N.embodiment)
/// the tag of that slot: the one that the checkpoint describes, else one of its embodiment_id.json,
/// else a published one, else "slot_<number>". Throws ConfigError naming the tags where the
/// checkpoint describes several of that slot and the recipe leaves the choice to it.
GrootRobot groot_robot_of(const GrootConfig& config, const data::Dataset& dataset);

/// An embodiment as a checkpoint describes it.
struct GrootProcessor {
  std::string file;  // for messages
  std::string tag;
  GrootModality modality;
};

/// The checkpoint's description of an embodiment. Nothing: the recipe has groups of its own
/// (model.modality); no checkpoint, or one without processor_config.json; a checkpoint that does
/// not describe new_embodiment or the slot of a dataset, or was written by this very run. Warns
/// where pictures or texts were made in another way than the recipe says. Throws ConfigError: no
/// such tag, model.checkpoint is not there, what this engine cannot do; DataError: a broken file.
std::optional<GrootProcessor> groot_processor_of(const GrootConfig& config, const std::string& tag);

/// The switches of numbers in the checkpoint's processor_config.json. They are the file's, not a
/// robot's: they hold for robots that it does not describe, too. Without a file, and with
/// model.modality, the defaults. Throws ConfigError: model.checkpoint is not there; DataError: a
/// broken file.
GrootNumbers groot_checkpoint_numbers(const GrootConfig& config);

/// The checkpoint's statistics of an embodiment with model.statistics: checkpoint, else nothing.
/// Throws ConfigError: no file, no such tag; DataError: a broken file.
std::optional<GrootStatistics> groot_checkpoint_statistics(const GrootConfig& config,
                                                           const std::string& tag);

}  // namespace longship::models
