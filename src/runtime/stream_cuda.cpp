#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <optional>

#include "base/error.h"
#include "runtime/stream.h"

namespace longship::runtime {
namespace {

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::DeviceIndex{0};
}

}  // namespace

struct Stream::Impl {
  c10::cuda::CUDAStream stream;
};
struct StreamScope::Impl {
  explicit Impl(c10::cuda::CUDAStream stream) : guard(stream) {}
  c10::cuda::CUDAStreamGuard guard;
};
struct Event::Impl {
  at::cuda::CUDAEvent event;
};
struct CapturedGraph::Impl {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};
};

Stream Stream::make(c10::Device device, bool high_priority) {
  Stream out;
  if (device.is_cuda()) {
    out.impl_ =
        std::make_shared<Impl>(Impl{c10::cuda::getStreamFromPool(high_priority, device.index())});
  }
  return out;
}

Stream Stream::current(c10::Device device) {
  Stream out;
  if (device.is_cuda()) {
    out.impl_ = std::make_shared<Impl>(Impl{c10::cuda::getCurrentCUDAStream(device.index())});
  }
  return out;
}

void Stream::synchronize() const {
  if (impl_) impl_->stream.synchronize();
}

StreamScope::StreamScope(const Stream& stream) {
  if (stream.impl_) impl_ = std::make_unique<Impl>(stream.impl_->stream);
}
StreamScope::~StreamScope() = default;

Event::Event(bool with_time)
    : impl_(std::make_unique<Impl>(
          Impl{at::cuda::CUDAEvent(with_time ? cudaEventDefault : cudaEventDisableTiming)})) {}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;

void Event::record(const Stream& stream) {
  if (stream.impl_) impl_->event.record(stream.impl_->stream);
}

void Event::block(const Stream& stream) const {
  if (stream.impl_ && impl_->event.isCreated()) impl_->event.block(stream.impl_->stream);
}

void Event::synchronize() const {
  if (impl_->event.isCreated()) impl_->event.synchronize();
}

bool Event::done() const {
  return impl_->event.query();
}

double Event::ms_since(const Event& start) const {
  return static_cast<double>(start.impl_->event.elapsed_time(impl_->event));
}

// Graphs hold their pools, that of device memory and that of pinned host memory. This object holds
// both as well: a pool whose last graph is gone cannot be captured into again.
GraphPool::GraphPool(c10::Device device) : device_(device) {
  if (!device.is_cuda()) return;
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // the allocator has no device before
  id_ = at::cuda::graph_pool_handle();
  c10::cuda::CUDACachingAllocator::createOrIncrefPool(index_of(device), id_);
  at::HostAllocator* host = at::getHostAllocator(c10::DeviceType::CUDA);
  host->begin_allocate_to_pool(id_, [](c10::Stream) { return false; });
  host->end_allocate_to_pool(id_);
}

GraphPool::~GraphPool() {
  if (!device_.is_cuda()) return;
  c10::cuda::CUDACachingAllocator::releasePool(index_of(device_), id_);
  at::getHostAllocator(c10::DeviceType::CUDA)->release_pool(id_);
}

PoolScope::PoolScope(const GraphPool& pool, const Stream& stream) : pool_(pool) {
  if (!stream.impl_) return;
  c10::cuda::CUDACachingAllocator::beginAllocateToPool(
      index_of(pool.device_), pool.id_,
      [own = stream.impl_->stream.stream()](cudaStream_t other) { return other == own; });
}

PoolScope::~PoolScope() {
  if (!pool_.device_.is_cuda()) return;
  c10::cuda::CUDACachingAllocator::endAllocateToPool(index_of(pool_.device_), pool_.id_);
  c10::cuda::CUDACachingAllocator::releasePool(index_of(pool_.device_), pool_.id_);
}

CapturedGraph::CapturedGraph() : impl_(std::make_unique<Impl>()) {}
CapturedGraph::~CapturedGraph() = default;

void CapturedGraph::capture(const Stream& stream, const GraphPool& pool,
                            const std::function<void()>& work) {
  LS_CHECK(stream.impl_ != nullptr, InternalError, "a graph can be captured on a CUDA stream only");
  const StreamScope scope(stream);
  stream.synchronize();
  impl_->graph.capture_begin(pool.id_, cudaStreamCaptureModeThreadLocal);
  std::exception_ptr fault;
  try {
    work();
  } catch (...) {
    fault = std::current_exception();
  }
  try {
    impl_->graph.capture_end();
  } catch (const std::exception& e) {
    if (fault) std::rethrow_exception(fault);  // the first fault explains the broken capture
    throw DeviceError(fmt::format("capturing a CUDA graph failed: {}", e.what()));
  }
  if (fault) std::rethrow_exception(fault);
  size_t nodes = 0;
  const cudaError_t status = cudaGraphGetNodes(impl_->graph.raw_cuda_graph(), nullptr, &nodes);
  LS_CHECK(status == cudaSuccess, DeviceError, "counting the nodes of a CUDA graph: {}",
           cudaGetErrorString(status));
  num_nodes_ = static_cast<int64_t>(nodes);
  impl_->graph.instantiate();
}

void CapturedGraph::replay() {
  impl_->graph.replay();
}

void release_cached_memory() {
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace longship::runtime
