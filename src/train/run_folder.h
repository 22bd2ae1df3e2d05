#pragma once
// Decides what a start of `train` does with output_dir: a fresh run, a resumed one, or a refusal.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/recipe.h"
#include "train/session.h"

namespace longship::train {

/// The part of a checkpoint that is neither weights nor optimizer state: state/trainer.json.
struct TrainerState {
  int64_t step = 0;         // steps done = position in the data stream in global batches
  int64_t num_updates = 0;  // updates applied; step minus skipped steps
  int64_t skipped_steps = 0;
  int64_t num_samples = 0;
  int64_t seed = 0;
  int64_t global_batch = 0;
  std::string dataset_fingerprint;
  DatasetIdentity dataset_identity;  // what the fingerprint is of; empty in older checkpoints
  // Sums since the last record, so that records after a resume are those of the uninterrupted run.
  int64_t window_steps = 0;
  int64_t window_updates = 0;
  double window_loss = 0, window_grad_norm = 0;
  std::vector<std::pair<std::string, double>> window_extra;
};

std::string to_json(const TrainerState& state);
TrainerState trainer_state_from(const std::filesystem::path& checkpoint);

struct StartPlan {
  std::optional<std::filesystem::path> resume_from;  // a checkpoint folder
  TrainerState state;                                // of that checkpoint
  bool is_fork = false;                              // it belongs to another run folder
  std::vector<std::string> warnings, notes;  // for the log of the run, which is opened later

  /// Logs warnings and notes.
  void report() const;
};

/// Applies checkpoint.resume and `overwrite` to recipe.output_dir. Compares the recipe with that of
/// the checkpoint: every difference is logged, one that breaks exactness throws ConfigError unless
/// the run is a fork. Deletes the earlier run when `overwrite` is set and creates the folder.
StartPlan plan_start(const Recipe& recipe, bool overwrite, const DatasetIdentity& dataset,
                     const FamilyLookup& lookup);

}  // namespace longship::train
