#pragma once
// Where tests find their fixtures and may write.

#include <filesystem>
#include <string_view>

namespace longship::testing {

/// Folder of a golden case, e.g. golden_path("pi05/tiny_train").
std::filesystem::path golden_path(std::string_view name);
/// Folder of a shipped dataset, e.g. dataset_path("pusht_v30"), or "expected/pusht_v30",
/// "broken/base_v21".
std::filesystem::path dataset_path(std::string_view name);
/// Root of the source tree.
std::filesystem::path source_root();
/// A fresh, empty folder for the running test; removed and made anew at each call with the same
/// name.
std::filesystem::path scratch_dir(std::string_view name);

}  // namespace longship::testing
