#pragma once
// The files beside a checkpoint's weights in which Isaac-GR00T keeps what is done to samples, and
// modality.json, which says where the groups lie. Torch-free. Source: save_pretrained() of
// processing_gr00t_n1d6.py and processing_gr00t_n1d7.py.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/groot/config.h"
#include "models/groot/processor.h"

namespace longship::models {

/// What a run does with the samples of one dataset.
struct GrootDescription {
  std::string dataset;  // for messages
  GrootRobot robot;
  GrootModality modality;  // views as the model sees them
  GrootNumbers numbers;
  GrootStatistics statistics;
  GrootRanges ranges;
};

/// processor_config.json, statistics.json, embodiment_id.json and, where all parts agree,
/// modality.json, as (name, text). What the files of model.checkpoint say of other embodiments
/// stays, and so do settings that this engine does not have. The switches of numbers and pictures
/// hold for the whole file: they become this run's, for the other embodiments too. Two parts of one
/// embodiment have one entry: statistics are those of the first, and groups that differ are left
/// out; both with a warning. Numbers are written so that reading gives the same bits. Throws
/// ConfigError where the parts have different switches of numbers, DataError naming file and key
/// where a file of model.checkpoint is broken.
std::vector<std::pair<std::string, std::string>> groot_sidecars(
    const GrootConfig& config, std::span<const GrootDescription> parts);

}  // namespace longship::models
