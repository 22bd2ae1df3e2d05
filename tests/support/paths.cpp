#include "support/paths.h"

#include <unistd.h>

#include <string>

namespace longship::testing {

namespace fs = std::filesystem;

fs::path source_root() {
  return fs::path(LS_SOURCE_ROOT);
}

fs::path golden_path(std::string_view name) {
  return source_root() / "tests/golden" / name;
}

fs::path dataset_path(std::string_view name) {
  const fs::path shipped = source_root() / "data" / name;
  return fs::exists(shipped) ? shipped : source_root() / "tests/data_sets" / name;
}

fs::path scratch_dir(std::string_view name) {
  const fs::path dir = fs::temp_directory_path() / "longship_tests" /
                       (std::to_string(::getpid()) + "_" + std::string(name));
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

}  // namespace longship::testing
