#include "models/common/lost_kernels.h"

#include "base/log.h"

namespace longship::models {

void warn_lost_kernels(at::Device device, const std::vector<LostKernel>& lost) {
  if (!device.is_cuda()) return;
  for (const LostKernel& one : lost) {
    log::warn("{}: {}: the library's operators run, which is slower", one.key, one.reason);
  }
}

}  // namespace longship::models
