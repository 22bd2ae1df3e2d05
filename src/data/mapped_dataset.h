#pragma once
// A dataset under other names: columns and cameras renamed, statistics replaced, faulty rows known.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace longship::data {

struct DatasetMapping {
  /// (our name, the dataset's name) of columns and cameras. A feature of the dataset that already
  /// has our name and is not renamed itself is hidden.
  std::vector<std::pair<std::string, std::string>> keys;
  /// (slot, camera): cameras appear under their slot's name and all others are hidden. An empty
  /// camera leaves the slot out. Empty list: cameras keep their names. Cameras are named as after
  /// `keys`.
  std::vector<std::pair<std::string, std::string>> cameras;
  /// Statistics that replace the dataset's own, under our names.
  std::map<std::string, FeatureStats> stats;
  /// What every sample says of itself.
  int64_t embodiment = 0;
  /// Names the dataset's part of the recipe in messages, e.g. "data.datasets.0.".
  std::string key = "data.";

  bool changes_nothing() const {
    return keys.empty() && cameras.empty() && stats.empty() && embodiment == 0;
  }
};

/// A view of `inner` through a mapping. Hidden features and renamed ones are logged. Throws
/// ConfigError naming the key, the name that is not there and those that are; DataError when
/// replaced statistics have another width than the feature.
std::shared_ptr<const Dataset> map_dataset(std::shared_ptr<const Dataset> inner,
                                           DatasetMapping mapping);

}  // namespace longship::data
