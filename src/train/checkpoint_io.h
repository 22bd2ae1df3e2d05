#pragma once
// What is inside a checkpoint: weights, configuration, statistics, training state.

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "models/spec.h"
#include "train/checkpoint.h"
#include "train/checkpoint_group.h"
#include "train/checkpoint_state.h"
#include "train/gradient_sync.h"
#include "train/optimizer.h"
#include "train/recipe.h"
#include "train/run_folder.h"

namespace longship::train {

/// The parts that do not change during a run.
struct CheckpointContents {
  const Recipe* recipe = nullptr;
  std::string recipe_yaml;
  const data::Dataset* dataset = nullptr;
  std::string stats_json;
  /// Those that the family adds (Transform::checkpoint_files()).
  std::vector<std::pair<std::string, std::string>> files = {};
};

/// Statistics of every feature, those the transform reads completed from the rows (min, max, mean,
/// std, q01, q99).
std::map<std::string, data::FeatureStats> checkpoint_stats(const data::Dataset& dataset,
                                                           const models::Transform& transform);

/// model.checkpoint of a recipe, or "".
std::string initial_weights(const Recipe& recipe);
/// Gives a fresh model those weights, or random ones from train.seed. `sink` gets the fp32 values.
void fill_weights(models::Policy& policy, const Recipe& recipe,
                  const models::PreciseSink& sink = {});

/// Everything that one rank writes into a checkpoint. Tensors may alias the state of the run.
struct SaveParts {
  int64_t step = 0;
  std::string strategy = "none";
  std::vector<StateSlice> state;  // the elements this rank owns
  // Of rank 0 only:
  std::vector<ExportTensor> model;                         // model.safetensors
  io::NamedTensors policy_state;                           // state/policy.safetensors
  std::vector<std::pair<std::string, std::string>> texts;  // path in the checkpoint, content

  uint64_t bytes() const;
};

/// What this process writes. Alone it holds everything; of several (`sync`) each has its part of
/// the state, and rank 0 all else: `contents` is read there only.
SaveParts collect_parts(const CheckpointContents& contents, models::Policy& policy,
                        const AdamW& optimizer, const TrainerState& state,
                        GradientSync* sync = nullptr);
/// Writes step_N by all ranks of the group: model.safetensors (export_plan(), streamed from the
/// state), config.json, config.yaml, stats.json, the family's files,
/// state/optimizer.rRRRR-of-WWWW.safetensors of every rank, state/index.json,
/// state/policy.safetensors, state/trainer.json, state/manifest.json. Throws like
/// CheckpointStore::save().
std::filesystem::path save_parts(CheckpointStore& store, CheckpointGroup& group,
                                 const SaveParts& parts);
/// The same by one process that holds everything.
std::filesystem::path save_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                                      models::Policy& policy, const AdamW& optimizer,
                                      const TrainerState& state);

/// The inverse, from a checkpoint of any number of ranks and any strategy: frozen weights from
/// model.safetensors, everything else from state/. Bitwise. Of several processes (`sync`) each
/// reads its part of the state; call sync->weights_changed() afterwards.
void load_training_state(const std::filesystem::path& checkpoint, models::Policy& policy,
                         AdamW& optimizer, int64_t num_updates, GradientSync* sync = nullptr);

}  // namespace longship::train
