#pragma once
// Meetings of devices of one host, on their streams. No dispatcher operator.

#include <c10/core/Device.h>

#include <array>
#include <cstdint>

namespace longship::ops {

/// Where the devices of a group leave word for each other; all zeros before the first meeting.
struct MeetingPlace {
  static constexpr int64_t kMaxRanks = 8;
  int64_t rank = 0, world_size = 1;
  uint64_t* count = nullptr;                  // memory of this device, one number
  uint64_t* arrived = nullptr;                // memory of this device, [world_size]
  std::array<uint64_t*, kMaxRanks> others{};  // by rank: `arrived` of that one, mapped here
  uint32_t* stop = nullptr;    // memory of the host, mapped on the device: not 0 ends all waiting
  uint64_t* failed = nullptr;  // the same: 1 + the rank that did not come in time
  double timeout_s = 600;      // to wait for another
  bool trap = true;  // a rank that does not come in time is an error of this device, which ends all
                     // its work; otherwise the work behind goes on
};

/// Work behind this on the current stream of `device` begins when the work before it is done on
/// all devices of the group. Every rank makes the same meetings in the same order, on streams in
/// order; some may be replays of captured ones. Throws DeviceError, in a build without CUDA too.
void meet(const MeetingPlace& place, c10::Device device);

}  // namespace longship::ops
