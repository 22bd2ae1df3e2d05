#pragma once
// CUDA streams, events and captured graphs without CUDA headers. On a CPU build, and for CPU
// devices, streams and events do nothing and graphs cannot be made.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace longship::runtime {

/// A stream of its own on a device; copies share it.
class Stream {
 public:
  /// No stream: scopes and events on it do nothing.
  Stream() = default;
  /// `high_priority` streams are served first by the device.
  static Stream make(c10::Device device, bool high_priority = false);
  /// The one on which this thread enqueues work for `device`.
  static Stream current(c10::Device device);
  /// Blocks the host until everything enqueued is done.
  void synchronize() const;

 private:
  friend class StreamScope;
  friend class Event;
  friend class CapturedGraph;
  friend class PoolScope;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Makes a stream the current one of this thread while it lives.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A point in a stream.
class Event {
 public:
  explicit Event(bool with_time = false);
  ~Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;

  void record(const Stream& stream);
  /// Later work of `stream` waits for the point, without the host.
  void block(const Stream& stream) const;
  /// Blocks the host. Does nothing before the first record().
  void synchronize() const;
  bool done() const;
  /// Milliseconds from `start` to this point; both made with time and done.
  double ms_since(const Event& start) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Device memory apart from the rest, that several graphs, and eager work between them, use one
/// after the other on one stream.
class GraphPool {
 public:
  /// Nothing for a CPU device.
  explicit GraphPool(c10::Device device);
  ~GraphPool();
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;

 private:
  friend class CapturedGraph;
  friend class PoolScope;
  c10::Device device_;
  std::pair<uint64_t, uint64_t> id_{0, 0};
};

/// What is allocated for `stream` while this lives comes from `pool`: an eager step then works in
/// the memory of the graphs, which are idle meanwhile, instead of beside it.
class PoolScope {
 public:
  PoolScope(const GraphPool& pool, const Stream& stream);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  const GraphPool& pool_;
};

/// A piece of device work, recorded once and replayed with one launch. Everything it touches must
/// stay where it is; it may not synchronise with the host.
class CapturedGraph {
 public:
  CapturedGraph();
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Runs `work` with `stream` current and records it; nothing is executed. Memory that `work`
  /// allocates comes from `pool` and stays reserved while the graph lives. Throws DeviceError.
  void capture(const Stream& stream, const GraphPool& pool, const std::function<void()>& work);
  /// Enqueues the recorded work on the current stream.
  void replay();
  /// Kernels, copies and fills of the recording.
  int64_t num_nodes() const { return num_nodes_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int64_t num_nodes_ = 0;
};

/// Gives cached, unused device memory back, e.g. before a capture allocates its own.
void release_cached_memory();

}  // namespace longship::runtime
