// The same symbols for a build without CUDA.
#include "base/error.h"
#include "runtime/stream.h"

namespace longship::runtime {

struct Stream::Impl {};
struct StreamScope::Impl {};
struct Event::Impl {};
struct CapturedGraph::Impl {};

Stream Stream::make(c10::Device, bool) {
  return {};
}
Stream Stream::current(c10::Device) {
  return {};
}
void Stream::synchronize() const {}

StreamScope::StreamScope(const Stream&) {}
StreamScope::~StreamScope() = default;

Event::Event(bool) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
void Event::record(const Stream&) {}
void Event::block(const Stream&) const {}
void Event::synchronize() const {}
bool Event::done() const {
  return true;
}
double Event::ms_since(const Event&) const {
  throw InternalError("this build has no CUDA: there are no timed events");
}

GraphPool::GraphPool(c10::Device device) : device_(device) {}
GraphPool::~GraphPool() = default;
PoolScope::PoolScope(const GraphPool& pool, const Stream&) : pool_(pool) {}
PoolScope::~PoolScope() {
  static_cast<void>(pool_);
}

CapturedGraph::CapturedGraph() = default;
CapturedGraph::~CapturedGraph() = default;
void CapturedGraph::capture(const Stream&, const GraphPool&, const std::function<void()>&) {
  throw InternalError("this build has no CUDA: graphs cannot be captured");
}
void CapturedGraph::replay() {
  throw InternalError("this build has no CUDA: graphs cannot be replayed");
}

void release_cached_memory() {}

}  // namespace longship::runtime
