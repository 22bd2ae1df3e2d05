#include "dist/device_clock.h"

#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "ops/stamp.h"

namespace longship::dist {
namespace {

// Two for each collective or wait; what comes beyond is not timed.
constexpr int64_t kSlots = 8192;
constexpr double kNsPerMs = 1e6;

}  // namespace

DeviceClock::DeviceClock(at::Device device)
    : device_(device),
      side_(runtime::Stream::make(device)),
      stamps_(at::zeros({kSlots}, at::TensorOptions(at::kLong).device(device))) {}

bool DeviceClock::has_room() const {
  return active_ && step_.num_slots + 2 <= kSlots;
}

void DeviceClock::begin() {
  step_ = {};
  active_ = true;
  used_ = false;
  depth_ = 0;
  open_ = -1;
}

TimedStep DeviceClock::end() {
  LS_CHECK(active_ && depth_ == 0, InternalError, "the clock of collectives ends inside a wait");
  active_ = false;
  if (used_) {
    runtime::Event last;
    last.record(side_);
    last.block(runtime::Stream::current(device_));
  }
  return step_;
}

void DeviceClock::collective_begins() {
  if (!has_room()) return;
  runtime::Event ready;
  ready.record(runtime::Stream::current(device_));
  ready.block(side_);
  used_ = true;
  const runtime::StreamScope scope(side_);
  ops::stamp_time(stamps_, step_.num_slots);
}

void DeviceClock::collective_launched(Pending& collective, const std::string& name) {
  if (!has_room()) return;
  const runtime::StreamScope scope(side_);
  collective.wait();
  ops::stamp_time(stamps_, step_.num_slots + 1);
  step_.entries.push_back({name, step_.num_slots});
  step_.num_slots += 2;
}

void DeviceClock::wait_begins() {
  if (depth_++ > 0 || !has_room()) return;
  ops::stamp_time(stamps_, step_.num_slots);
  step_.entries.push_back({"", step_.num_slots});
  open_ = step_.num_slots + 1;
  step_.num_slots += 2;
}

void DeviceClock::wait_ends() {
  if (--depth_ > 0 || open_ < 0) return;
  ops::stamp_time(stamps_, open_);
  open_ = -1;
}

StepTimes DeviceClock::read(const TimedStep& step, const at::Tensor& stamps) {
  LS_CHECK(stamps.is_cpu() && stamps.scalar_type() == at::kLong && stamps.numel() >= step.num_slots,
           InternalError, "{} stamps of a step that has {}", stamps.numel(), step.num_slots);
  const int64_t* at = stamps.const_data_ptr<int64_t>();
  StepTimes out;
  for (const TimedStep::Entry& entry : step.entries) {
    const double ms = static_cast<double>(at[entry.slot + 1] - at[entry.slot]) / kNsPerMs;
    (entry.name.empty() ? out.waited : out.collectives[entry.name]) += ms;
  }
  return out;
}

WaitTime::WaitTime(const Communicator& communicator) : clock_(communicator.clock()) {
  if (clock_ != nullptr) clock_->wait_begins();
}

WaitTime::~WaitTime() {
  if (clock_ != nullptr) clock_->wait_ends();
}

}  // namespace longship::dist
