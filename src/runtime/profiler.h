#pragma once
// Records what the device (and the host) does, through the profiler inside LibTorch.

#include <filesystem>
#include <memory>

#include "runtime/device_event.h"

namespace longship::runtime {

struct ProfilerOptions {
  /// Operators of the tensor library on the host as well. They make a trace easier to read and cost
  /// about a microsecond each; switch them off to measure launch gaps of eager steps. Always on
  /// where there is no CUDA device, because a trace must hold something.
  bool host_operators = true;
};

/// One recording. start() and stop() belong on one thread; only one recording can run at a time.
/// Sees the kernels inside replays of CUDA graphs (for those graphs that were instantiated after
/// prepare_for_graphs()).
class Profiler {
 public:
  explicit Profiler(ProfilerOptions options = {});
  ~Profiler();  // ends a running recording
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Loads the device's tracing library (CUPTI). Kernels of a graph are visible one by one only
  /// when this was done before the graph was instantiated. Costs about a second once, and
  /// afterwards a little host time per launch: do not call it in a program that measures speed
  /// before it did so. Nothing without a CUDA device.
  static void prepare_for_graphs();

  /// Waits for the device, then records.
  void start();
  /// A boundary between two steps: call it N + 1 times around N steps, each time before the first
  /// launch of a step, and once after the last launch. Does not touch the device.
  void mark_step();
  /// Waits for the device and ends the recording. Without marks the trace is one step.
  DeviceTrace stop();

  /// Chrome trace JSON of the last recording, for ui.perfetto.dev. The file appears under its name
  /// complete or not at all. Once per recording. Throws Error when it cannot be written.
  void save_trace(const std::filesystem::path& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longship::runtime
