#pragma once
// What is inside a checkpoint: weights, configuration, statistics, training state.

#include <filesystem>
#include <string>

#include "data/dataset.h"
#include "io/tensor_io.h"
#include "models/spec.h"
#include "train/checkpoint.h"
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
};

/// Statistics of every feature, those the transform reads completed from the rows (min, max, mean,
/// std, q01, q99).
std::string stats_json(const data::Dataset& dataset, const models::Transform& transform);

/// model.checkpoint of a recipe, or "".
std::string initial_weights(const Recipe& recipe);
/// Gives a fresh model those weights, or random ones from train.seed. `sink` gets the fp32 values.
void fill_weights(models::Policy& policy, const Recipe& recipe,
                  const models::PreciseSink& sink = {});

/// Writes step_N: model.safetensors (public names, the parameters' dtype; the moving average when
/// there is one), config.json, config.yaml, stats.json, state/optimizer.safetensors,
/// state/trainer.json, state/manifest.json.
std::filesystem::path save_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                                      models::Policy& policy, const AdamW& optimizer,
                                      const TrainerState& state);

/// The tensors of a checkpoint: the public weights, and what goes to state/optimizer.safetensors.
struct CheckpointTensors {
  std::vector<models::NamedTensor> weights;
  std::vector<io::LazyTensor> optimizer;
};
/// Writes step_N from given tensors; the other save_checkpoint() takes them from the optimizer.
std::filesystem::path write_checkpoint(CheckpointStore& store, const CheckpointContents& contents,
                                       models::Policy& policy, const CheckpointTensors& tensors,
                                       const TrainerState& state);

/// The inverse: frozen weights from model.safetensors, everything else from state/. Bitwise.
/// `sync`: of several processes; where it divides parameters, each takes its parts (and calls
/// begin_gather() afterwards). Checkpoints do not depend on how many processes wrote them.
void load_training_state(const std::filesystem::path& checkpoint, models::Policy& policy,
                         AdamW& optimizer, int64_t num_updates, const GradientSync* sync = nullptr);

}  // namespace longship::train
