// Builds without CUDA: there is nothing to launch.
#include "ops/early_launch.h"

namespace longship::ops {

void set_early_launch(bool) {}

}  // namespace longship::ops
