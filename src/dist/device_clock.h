#pragma once
// When the collectives of a step ran on a device, and how long its work waited for them: taken by
// the device itself, in captured steps too.
//
// A stream of its own follows every collective: it waits for what the collective waits for, writes
// the device's time, waits for the collective, and writes the time again. So a collective begins,
// for this clock, when its input is there and the one before it has ended, and nothing of this is
// in the way of the computation. Waits are stamped on the stream that waits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/transport.h"
#include "runtime/stream.h"

namespace longship::dist {

/// What the slots of a step's stamps mean: pairs of begin and end.
struct TimedStep {
  struct Entry {
    std::string name;  // of a collective's counter; "": a wait
    int64_t slot = 0;  // begin; the end is behind it
  };
  std::vector<Entry> entries;
  int64_t num_slots = 0;
};

/// Milliseconds of a step.
struct StepTimes {
  std::map<std::string, double> collectives;  // by name
  double waited = 0;
};

class DeviceClock {
 public:
  /// `device`: a CUDA device.
  explicit DeviceClock(at::Device device);

  /// A step begins: slots are used again from the first.
  void begin();
  /// The step is enqueued: the current stream waits for the clock's own, so that a capture may end.
  /// What comes until begin() is not timed.
  TimedStep end();
  /// int64 [slots] on the device; those of the step that was enqueued last, once it is done.
  const at::Tensor& stamps() const { return stamps_; }
  /// From a copy on the host.
  static StepTimes read(const TimedStep& step, const at::Tensor& stamps);

  /// Around the launch of a collective, on the stream on which its input is made.
  void collective_begins();
  void collective_launched(Pending& collective, const std::string& name);
  /// Around waits of the current stream. Inner ones of several nested pairs count for nothing.
  void wait_begins();
  void wait_ends();

 private:
  bool has_room() const;

  at::Device device_;
  runtime::Stream side_;
  at::Tensor stamps_;
  TimedStep step_;
  bool active_ = false, used_ = false;
  int64_t depth_ = 0;
  int64_t open_ = -1;  // slot of the end of the wait under way
};

class Communicator;

/// A wait of the current stream for collectives of `communicator`, while it lives.
class WaitTime {
 public:
  explicit WaitTime(const Communicator& communicator);
  ~WaitTime();
  WaitTime(const WaitTime&) = delete;
  WaitTime& operator=(const WaitTime&) = delete;

 private:
  DeviceClock* clock_;
};

}  // namespace longship::dist
