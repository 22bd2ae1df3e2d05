#include "apps/versions.h"

#include <fmt/core.h>

#include "base/version.h"
#include "io/versions.h"
#include "runtime/device.h"

namespace longship::apps {

std::string versions_text() {
  std::string text = fmt::format("longship {} ({})\n  LibTorch {}\n  CUDA {}\n", version(), build_info(),
                                 runtime::torch_version(), runtime::cuda_version());
  for (const auto& [name, number] : io::library_versions()) text += fmt::format("  {} {}\n", name, number);
  text.pop_back();
  return text;
}

}  // namespace longship::apps
