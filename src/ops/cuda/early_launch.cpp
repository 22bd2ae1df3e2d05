#include "ops/early_launch.h"

#include "kernels/common/launch.h"

namespace longship::ops {

void set_early_launch(bool on) {
  kernels::set_early_launch(on);
}

}  // namespace longship::ops
