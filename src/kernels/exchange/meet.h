#pragma once
// A meeting of devices: what stands before it on the streams of all of them is done before anything
// behind it begins on any.
// Host API of the CUDA kernel; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

constexpr int kMaxMeeting = 8;

/// Number n of the meetings of this group is counted on the device itself, so a captured one can be
/// replayed, and met with an eager one elsewhere. Every device writes n into its place at all
/// others and waits until all have written n or more into its own: nothing is ever reset.
struct MeetArgs {
  int rank = 0, world_size = 1;
  uint64_t* count = nullptr;                // this device: meetings that are over
  const uint64_t* arrived = nullptr;        // this device, [world_size]: written by the others
  uint64_t* places[kMaxMeeting] = {};       // at the others: element `rank` of their `arrived`
  const volatile uint32_t* stop = nullptr;  // on the host: not 0 ends the wait
  volatile uint64_t* failed = nullptr;      // on the host: 1 + the rank that did not come in time
  uint64_t timeout_ns = 0;
  bool trap = false;  // not to come in time is an error of the device, which ends all its work
};

/// Asynchronous on `stream`; one warp, which waits beside other kernels. Can be captured.
cudaError_t meet(const MeetArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
