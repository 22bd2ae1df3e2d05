#pragma once
// Checkpoints and starts of several processes.

#include <memory>

#include "train/checkpoint_group.h"
#include "train/gradient_sync.h"
#include "train/parallel.h"
#include "train/run_folder.h"

namespace longship::train {

/// The processes of a run as those who write its checkpoints: over a group of its own, because
/// saving goes on behind training. Collective.
std::unique_ptr<CheckpointGroup> make_checkpoint_group(Parallel& parallel);

/// plan_start() on rank 0; the others follow its decision. Collective; throws the same everywhere.
StartPlan plan_start_together(Parallel& parallel, const Recipe& recipe, bool overwrite,
                              const DatasetIdentity& dataset, const FamilyLookup& lookup);

/// Throws ConfigError naming a parameter and the ranks when the processes did not begin with the
/// same weights bit for bit: a damaged or other weights file on one host. Collective.
void check_same_weights(Parallel& parallel, const GradientSync& sync);

}  // namespace longship::train
