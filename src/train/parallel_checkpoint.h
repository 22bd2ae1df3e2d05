#pragma once
// Checkpoints and starts of several processes: rank 0 decides and writes, the others hold still.

#include <filesystem>

#include "train/checkpoint_io.h"
#include "train/gradient_sync.h"
#include "train/parallel.h"
#include "train/run_folder.h"

namespace longship::train {

/// save_checkpoint() of all processes; the same folder and files as one process writes. Rank 0
/// writes; with zero1 the parts of the others come to it tensor by tensor, so that it holds one
/// whole tensor at a time (and the averaged weights where there is a moving average). Collective.
/// Throws on every rank what rank 0 throws.
std::filesystem::path save_together(Parallel& parallel, CheckpointStore& store,
                                    const CheckpointContents& contents, models::Policy& policy,
                                    const AdamW& optimizer, GradientSync* sync,
                                    const TrainerState& state);

/// plan_start() on rank 0; the others follow its decision. Collective; throws the same everywhere.
StartPlan plan_start_together(Parallel& parallel, const Recipe& recipe, bool overwrite,
                              const DatasetIdentity& dataset, const FamilyLookup& lookup);

/// Throws ConfigError naming a parameter and the ranks when the processes do not hold the same
/// weights bit for bit: a damaged or other weights file on one host. Collective.
void check_same_weights(Parallel& parallel, models::Policy& policy);

}  // namespace longship::train
