#include "models/common/dataset_binding.h"

#include "base/error.h"

namespace longship::models {

void bind_dimension(const data::Dataset& dataset, const std::string& name, std::string_view key,
                    int64_t& dim) {
  const data::Feature* feature = dataset.find_feature(name);
  if (feature == nullptr) return;
  LS_CHECK(dim == 0 || dim == feature->width(), DataError,
           "model.{} is {}, but '{}' of {} has {} dimensions; set it to 0 to take the dataset's",
           key, dim, name, dataset.root().string(), feature->width());
  dim = feature->width();
}

}  // namespace longship::models
