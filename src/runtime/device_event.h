#pragma once
// What a device did, as the profiler saw it. No tensor library here, so that summaries are plain
// functions.

#include <cstdint>
#include <string>
#include <vector>

namespace longship::runtime {

enum class DeviceEventKind { kKernel, kMemcpy, kMemset };

/// One kernel, copy or fill. Times are nanoseconds since 1970, on the clock of the host.
struct DeviceEvent {
  std::string name;  // demangled
  int64_t start_ns = 0;
  int64_t duration_ns = 0;
  int64_t stream = 0;
  DeviceEventKind kind = DeviceEventKind::kKernel;
  uint64_t launch_id = 0;   // of the host call that launched it; the nodes of one graph share it
  int64_t launch_ns = 0;    // host time of that call; 0 = not seen
  bool from_graph = false;  // launched by a graph replay

  int64_t end_ns() const { return start_ns + duration_ns; }
};

/// The events of N steps. boundaries_ns has N + 1 times in ascending order: where each step begins
/// on the device, then the end of the last.
struct DeviceTrace {
  std::vector<DeviceEvent> events;
  std::vector<int64_t> boundaries_ns;
  int64_t num_host_events = 0;  // operators and runtime calls in the trace
};

}  // namespace longship::runtime
