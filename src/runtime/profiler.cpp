#include "runtime/profiler.h"

#include <c10/util/ApproximateClock.h>
#include <fcntl.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#ifdef LS_CUDA_ENABLED
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/trace_summary.h"

namespace longship::runtime {
namespace {

namespace kineto = torch::autograd::profiler;
using kineto::ActivityType;
using libkineto::ActivityType::CONCURRENT_KERNEL;
using libkineto::ActivityType::CUDA_DRIVER;
using libkineto::ActivityType::CUDA_RUNTIME;
using libkineto::ActivityType::GPU_MEMCPY;
using libkineto::ActivityType::GPU_MEMSET;

kineto::ProfilerConfig make_config() {
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO);
}

std::set<ActivityType> choose_activities(const ProfilerOptions& options) {
  const bool cuda = cuda_available();
  std::set<ActivityType> activities;
  if (cuda) activities.insert(ActivityType::CUDA);
  if (options.host_operators || !cuda) activities.insert(ActivityType::CPU);
  return activities;
}

void wait_for_device() {
#ifdef LS_CUDA_ENABLED
  if (cuda_available()) c10::cuda::device_synchronize();
#endif
}

void begin(const std::set<ActivityType>& activities) {
  kineto::prepareProfiler(make_config(), activities);
  kineto::enableProfiler(make_config(), activities);
}

struct Launch {
  int64_t host_ns = 0;
  bool is_graph = false;
};
using Launches = std::unordered_map<uint64_t, Launch>;

/// Host calls by correlation number. A runtime call and the driver call inside it share a number;
/// the earlier one counts.
Launches find_launches(const std::vector<kineto::KinetoEvent>& events) {
  Launches launches;
  for (const kineto::KinetoEvent& event : events) {
    const auto type = static_cast<libkineto::ActivityType>(event.activityType());
    if (type != CUDA_RUNTIME && type != CUDA_DRIVER) continue;
    const auto start = static_cast<int64_t>(event.startNs());
    auto [entry, is_new] = launches.try_emplace(event.correlationId(), Launch{start, false});
    if (!is_new) entry->second.host_ns = std::min(entry->second.host_ns, start);
    entry->second.is_graph =
        entry->second.is_graph || event.name().find("GraphLaunch") != std::string::npos;
  }
  return launches;
}

DeviceTrace read_trace(const std::vector<kineto::KinetoEvent>& events,
                       std::span<const int64_t> marks) {
  DeviceTrace trace;
  const Launches launches = find_launches(events);
  for (const kineto::KinetoEvent& event : events) {
    const auto type = static_cast<libkineto::ActivityType>(event.activityType());
    if (type != CONCURRENT_KERNEL && type != GPU_MEMCPY && type != GPU_MEMSET) {
      ++trace.num_host_events;
      continue;
    }
    DeviceEvent& out = trace.events.emplace_back();
    out.name = event.name();
    out.start_ns = static_cast<int64_t>(event.startNs());
    out.duration_ns = static_cast<int64_t>(event.durationNs());
    out.stream = event.deviceResourceId();
    out.kind = type == GPU_MEMCPY   ? DeviceEventKind::kMemcpy
               : type == GPU_MEMSET ? DeviceEventKind::kMemset
                                    : DeviceEventKind::kKernel;
    out.launch_id = event.correlationId();
    const auto launch = launches.find(out.launch_id);
    if (launch == launches.end()) continue;
    out.launch_ns = launch->second.host_ns;
    out.from_graph = launch->second.is_graph;
  }
  trace.boundaries_ns = device_step_boundaries(trace.events, marks);
  return trace;
}

void sync_file(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

struct Profiler::State {
  ProfilerOptions options;
  bool running = false;
  bool saved = false;
  std::vector<int64_t> marks;
  std::unique_ptr<kineto::ProfilerResult> result;
};

Profiler::Profiler(ProfilerOptions options) : state_(std::make_unique<State>()) {
  state_->options = options;
}

Profiler::~Profiler() {
  if (!state_->running) return;
  try {
    kineto::disableProfiler();
  } catch (...) {  // a destructor has nobody to tell
  }
}

void Profiler::prepare_for_graphs() {
  if (!cuda_available()) return;
  begin({ActivityType::CUDA});
  kineto::disableProfiler();
}

void Profiler::start() {
  LS_CHECK(!state_->running, InternalError, "profiler: start() during a recording");
  state_->marks.clear();
  state_->result.reset();
  state_->saved = false;
  wait_for_device();
  begin(choose_activities(state_->options));
  state_->running = true;
}

void Profiler::mark_step() {
  state_->marks.push_back(c10::getTime());
}

DeviceTrace Profiler::stop() {
  LS_CHECK(state_->running, InternalError, "profiler: stop() without start()");
  wait_for_device();
  state_->running = false;
  state_->result = kineto::disableProfiler();
  return read_trace(state_->result->events(), state_->marks);
}

void Profiler::save_trace(const std::filesystem::path& path) {
  LS_CHECK(state_->result != nullptr && !state_->saved, InternalError,
           "profiler: save_trace() needs a finished recording that was not saved yet");
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  const fs::path partial = path.string() + fmt::format(".partial-{}", ::getpid());
  fs::remove(partial, error);
  state_->saved = true;
  state_->result->save(partial.string());
  // The writer only logs its failures.
  const auto num_bytes = fs::file_size(partial, error);
  if (error || num_bytes == 0)
    throw Error(ExitCode::kOther, fmt::format("trace '{}' could not be written", path.string()));
  sync_file(partial);
  fs::rename(partial, path, error);
  if (error) {
    const std::string why = error.message();
    fs::remove(partial, error);
    throw Error(ExitCode::kOther, fmt::format("trace '{}': {}", path.string(), why));
  }
}

}  // namespace longship::runtime
