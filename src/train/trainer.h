#pragma once
// The training loop. It knows families only through models/spec.h.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/parallel.h"
#include "train/recipe.h"

namespace longship::train {

struct TrainOptions {
  bool overwrite = false;                         // remove an earlier run in output_dir
  bool quiet = false;                             // no console output (tests)
  std::string command = "longship train CONFIG";  // what to type to resume, for messages
  Parallel* parallel = nullptr;                   // the processes of the run; null: this one alone
};

struct TrainOutcome {
  int64_t step = 0;                  // steps done
  bool interrupted = false;          // SIGINT or SIGTERM came; a checkpoint was written
  bool finished = false;             // train.steps reached
  double last_loss = 0;              // of the last step that was run here
  std::filesystem::path checkpoint;  // the newest, empty when none was written
  std::vector<double> losses;        // of every step that was run here
};

/// Trains as the recipe says and writes the run folder: config.yaml, train.log, metrics.jsonl,
/// tensorboard/, loss.svg, checkpoints/, latest. Everything that can be wrong with configuration,
/// dataset, checkpoint and device is found before the first step. Step s (from 0) uses samples
/// ShuffledStream::batch(s), draws keyed by (seed, s, sample id), and the learning rate of the
/// number of updates done, so a resumed run repeats the uninterrupted one bit for bit.
///
/// NaN or Inf in a loss or a gradient: `stop` saves the state before that step and throws
/// NonFiniteError; `skip` leaves weights, moments, average and schedule as they were and goes on
/// with the next samples, at most max_skipped_steps times.
///
/// Several processes (TrainOptions::parallel, connected for this recipe) all call this with their
/// dataset and return the same outcome. Rank 0 writes the run folder; the others write
/// train.rank<r>.log there and print errors only. Every decision (where to start, skip, stop, save)
/// is the same on all of them: a signal or a sample that cannot be read on one rank makes all save
/// once and leave after the same step. An error of one rank ends the others with a PeerError that
/// says why, or with the same error.
///
/// Throws ConfigError (also when output_dir holds something that must not be overwritten),
/// DataError, CheckpointError, DeviceError, NonFiniteError,
/// PeerError.
TrainOutcome train(const Recipe& recipe, std::shared_ptr<const data::Dataset> dataset,
                   const TrainOptions& options, const FamilyLookup& lookup);

}  // namespace longship::train
