#pragma once
// What training and evaluation share: the dataset of a recipe, a model on a device, and a
// checkpoint read back.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "models/spec.h"
#include "train/recipe.h"
#include "train/training_data.h"

namespace longship::train {

/// What training depends on of the datasets, but pixels, aspect by aspect in words and hashes:
/// ("datasets.1 episodes", "206 episodes, 25650 frames, 1f0c..."). Aspects: format, rate, episodes,
/// features, tasks, statistics, values (of the state and the actions); of a mixture for each of its
/// datasets.
using DatasetIdentity = std::vector<std::pair<std::string, std::string>>;
DatasetIdentity identify(const data::Dataset& dataset, const std::vector<std::string>& columns);

/// SHA-256 over an identity.
std::string fingerprint(const DatasetIdentity& identity);
/// "datasets.1 episodes: A -> B" for every aspect that differs.
std::vector<std::string> differences(const DatasetIdentity& before, const DatasetIdentity& after);

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
