// The same symbol for a build without CUDA.
#ifndef LS_OPS_CUDA
#include "ops/meet.h"
#include "base/error.h"

namespace longship::ops {

void meet(const MeetingPlace&, c10::Device device) {
  throw DeviceError(fmt::format("meet: no implementation for device {}", device.str()));
}

}  // namespace longship::ops
#endif
