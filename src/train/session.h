#pragma once
// What training and evaluation share: the dataset of a recipe, a model on a device, and a
// checkpoint read back.

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "data/dataset.h"
#include "models/spec.h"
#include "train/recipe.h"

namespace longship::train {

/// Opens the recipe's dataset; DataError with every fault, ConfigError when the path is missing in
/// the recipe.
std::shared_ptr<const data::Dataset> open_dataset(const Recipe& recipe);

/// SHA-256 over everything of a dataset that training depends on but pixels: format, rate,
/// episodes, features, tasks, statistics.
std::string fingerprint(const data::Dataset& dataset);

/// A dataset with the statistics of a checkpoint in place of its own, so that a model sees other
/// data through the normalisation it was trained with.
std::shared_ptr<const data::Dataset> with_stats(std::shared_ptr<const data::Dataset> dataset,
                                                std::map<std::string, data::FeatureStats> stats);

/// Statistics as JSON (float64, exact) and back.
std::string stats_to_json(const std::map<std::string, data::FeatureStats>& stats);
std::map<std::string, data::FeatureStats> stats_from_json(const std::filesystem::path& path);

at::ScalarType parse_dtype(const std::string& name);

/// How a recipe builds its model on `device`: dtype, operators, recomputed units, buckets. Weights
/// stay uninitialised.
models::BuildOptions build_options(const Recipe& recipe, at::Device device);
/// Global settings of the tensor library that a recipe asks for: threads, determinism, TF32.
void apply_library_settings(const Recipe& recipe);

/// A checkpoint folder written by a run, read back.
struct LoadedCheckpoint {
  std::filesystem::path folder;
  Recipe recipe;
  std::map<std::string, data::FeatureStats> stats;
};

/// `path`: a checkpoint folder or a run folder (its newest valid checkpoint). Throws
/// CheckpointError naming the file that is missing or wrong.
LoadedCheckpoint read_checkpoint(const std::filesystem::path& path, const FamilyLookup& lookup);

/// Decides where pictures are augmented (data.augment.on) when `device` trains; call before
/// make_transform(). Throws ConfigError when a device is asked for that does not train.
void place_augmentation(const Recipe& bound, at::Device device);

/// The checkpoint's model in fp32 on `device`, bound to `dataset` (see ModelConfig::bind_dataset),
/// with its weights.
std::unique_ptr<models::Policy> build_policy(const LoadedCheckpoint& checkpoint,
                                             const data::Dataset& dataset, at::Device device);

}  // namespace longship::train
