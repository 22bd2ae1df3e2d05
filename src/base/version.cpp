#include "base/version.h"

#include <fmt/core.h>

namespace longship {

std::string version() {
  return LS_VERSION;
}

std::string build_info() {
#if defined(__clang__)
  const std::string compiler = fmt::format("clang {}.{}", __clang_major__, __clang_minor__);
#else
  const std::string compiler = fmt::format("g++ {}.{}", __GNUC__, __GNUC_MINOR__);
#endif
  return fmt::format("longship {} ({}, {}, {})", LS_VERSION, compiler, LS_BUILD_TYPE, LS_FLAVOUR);
}

}  // namespace longship
