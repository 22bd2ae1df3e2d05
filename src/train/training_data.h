#pragma once
// From the recipe's `data:` section to what the trainer reads: a dataset or a mixture, its
// transform, and the order of its samples.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "data/dataset.h"
#include "data/mixture.h"
#include "data/sampler.h"
#include "data/split.h"
#include "models/spec.h"
#include "train/recipe.h"

namespace longship::train {

/// Opens the recipe's datasets under the recipe's names: one, or a data::MixtureDataset. DataError
/// with every fault of all of them, ConfigError for a mapping that does not fit.
std::shared_ptr<const data::Dataset> open_dataset(const Recipe& recipe);

/// The family's transform; of a mixture, one per dataset behind models::make_mixture_transform().
/// `recipe`: bound to the dataset (ModelConfig::bind_dataset).
std::unique_ptr<models::Transform> make_transform(const Recipe& recipe,
                                                  const data::Dataset& dataset);
/// The transform of one dataset of a mixture; `own` is that dataset with other statistics, where
/// they differ.
std::unique_ptr<models::Transform> make_part_transform(const Recipe& recipe,
                                                       const data::MixtureDataset& mixture,
                                                       size_t part,
                                                       const data::Dataset* own = nullptr);

struct TrainingSamples {
  data::Split split;  // positions and ids in the whole dataset or mixture; ids without bad samples
  std::shared_ptr<const data::SampleOrder> order;
  int64_t num_bad = 0;  // samples left out because of data.on_bad_sample skip
  std::string summary;  // one line per dataset of a mixture: samples, share, passes
};

/// Splits, leaves out what data.on_bad_sample says, and orders. `windows` are the transform's.
/// Throws ConfigError for episodes that do not exist, DataError when more samples are bad than
/// data.max_bad_fraction allows.
TrainingSamples training_samples(const Recipe& recipe, const data::Dataset& dataset,
                                 const data::WindowSpec& windows);

/// Statistics from a file: stats.json of a checkpoint of ours or of a LeRobot dataset (features by
/// name), or openpi's norm_stats.json (its `state` and `actions` become the given columns). Throws
/// DataError naming file and key.
std::map<std::string, data::FeatureStats> read_external_stats(const std::filesystem::path& path,
                                                              const std::string& state_column,
                                                              const std::string& action_column);

}  // namespace longship::train
