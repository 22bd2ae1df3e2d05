#pragma once

#include <filesystem>

namespace longship::apps {

/// Prints what a dataset holds. Returns the exit code; throws DataError when it is not a sound
/// dataset.
int inspect_dataset(const std::filesystem::path& path, bool json);

}  // namespace longship::apps
