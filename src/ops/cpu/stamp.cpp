#include "ops/stamp.h"

#include <chrono>

#include "base/error.h"
#include "ops/stamp_internal.h"

namespace longship::ops {

void stamp_time(const at::Tensor& stamps, int64_t slot) {
  LS_CHECK(stamps.scalar_type() == at::kLong && stamps.is_contiguous() && slot >= 0 &&
               slot < stamps.numel(),
           ShapeError, "stamp_time: slot {} of {} elements of {}; contiguous int64", slot,
           stamps.numel(), c10::toString(stamps.scalar_type()));
  if (!stamps.is_cpu()) return stamp_time_device(stamps, slot);
  stamps.mutable_data_ptr<int64_t>()[slot] =
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count();
}

#ifndef LS_OPS_CUDA
void stamp_time_device(const at::Tensor& stamps, int64_t) {
  throw DeviceError(
      fmt::format("stamp_time: no implementation for device {}", stamps.device().str()));
}
#endif

}  // namespace longship::ops
