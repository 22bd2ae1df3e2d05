#pragma once
// What a family's configuration takes from the dataset.

#include <cstdint>
#include <string>
#include <string_view>

#include "data/dataset.h"

namespace longship::models {

/// Sets `dim`, the setting model.<key>, to the width of column `name`; a column that does not exist
/// leaves it alone, because the transform reports missing ones with all names. Throws DataError
/// when `dim` is neither 0 nor that width.
void bind_dimension(const data::Dataset& dataset, const std::string& name, std::string_view key,
                    int64_t& dim);

}  // namespace longship::models
