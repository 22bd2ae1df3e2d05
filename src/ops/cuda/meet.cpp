// CUDA launch of meet on the current stream.
#include "ops/meet.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/exchange/meet.h"
#include "ops/cuda/launch.h"

namespace longship::ops {

void meet(const MeetingPlace& place, c10::Device device) {
  static_assert(MeetingPlace::kMaxRanks == kernels::kMaxMeeting);
  const c10::cuda::CUDAGuard guard(device);
  kernels::MeetArgs args;
  args.rank = static_cast<int>(place.rank);
  args.world_size = static_cast<int>(place.world_size);
  args.count = place.count;
  args.arrived = place.arrived;
  for (int64_t r = 0; r < place.world_size; ++r) {
    if (r == place.rank) continue;
    args.places[r] = place.others[static_cast<size_t>(r)] + place.rank;
  }
  args.stop = place.stop;
  args.failed = place.failed;
  args.timeout_ns = static_cast<uint64_t>(place.timeout_s * 1e9);
  args.trap = place.trap;
  check_launch("meet", kernels::meet(args, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace longship::ops
