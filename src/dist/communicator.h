#pragma once
// Collectives with a name: who waits for what, in which step, how many bytes, how long.

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/device_clock.h"
#include "dist/transport.h"

namespace longship::dist {

enum class CollectiveKind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };
std::string_view collective_name(CollectiveKind kind);  // "all_reduce", ...

/// Bytes that one rank sends when the collective runs as a ring over `world_size` ranks, where
/// `num_bytes` is the size of the whole tensor (the input of a reduce-scatter, the output of an
/// all-gather), rounded down:
///   all_reduce 2 (W - 1) / W * n; reduce_scatter, all_gather (W - 1) / W * n;
///   broadcast (W - 1) / W * n, the mean over the ranks; barrier 0
int64_t ring_bytes(CollectiveKind kind, int64_t world_size, int64_t num_bytes);
/// The same of an all-reduce whose inputs are narrower than its result (all_reduce_into): parts of
/// the inputs, then of the result, (W - 1) / W * (input + output). Bytes of a whole input and of
/// the result.
int64_t widened_all_reduce_bytes(int64_t world_size, int64_t input_bytes, int64_t output_bytes);

/// Totals of the collectives of one name.
struct CollectiveCounter {
  int64_t count = 0;
  int64_t tensor_bytes = 0;  // of whole tensors
  int64_t wire_bytes = 0;    // sent by this rank, by ring_bytes()
  double elapsed_ms = 0;  // from launch to the end of wait(), or as the device ran it; overlapped
                          // ones count fully
  double exposed_ms = 0;  // spent inside wait() on the host

  CollectiveCounter& operator+=(const CollectiveCounter& other);
};
/// What was counted between two readings of the counters, without names that did not move.
std::map<std::string, CollectiveCounter> difference(
    const std::map<std::string, CollectiveCounter>& after,
    const std::map<std::string, CollectiveCounter>& before);

/// One line of the flight record.
struct FlightEntry {
  int64_t sequence = 0;  // number of the collective in this group, from 0; equal on all ranks
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string name;
  int64_t step = 0;
  std::string dtype;
  int64_t numel = 0;                                      // of the whole tensor
  double launched_s = 0, waited_s = -1, finished_s = -1;  // since the group began; -1: not yet
  bool failed = false;
};

struct CommunicatorOptions {
  std::string group = "world";        // for messages
  std::vector<int64_t> global_ranks;  // of the group's ranks; empty: the same numbers
  int64_t flight_capacity = 1024;     // entries that are kept
  std::filesystem::path
      flight_folder;  // on failure flight_<group>_rank<r>.json goes here; "": nowhere
  /// A host wait longer than this is reported by the watchdog as a warning; 0: no watchdog.
  double warn_after_s = 60;
  /// A collective that has been awaited for longer is taken as lost: the watchdog writes the flight
  /// record, aborts the transport, and calls `on_lost` when that did not end the wait within five
  /// seconds. 0: never. Give more than the transport's own timeout.
  double lost_after_s = 0;
  std::function<void(const std::string& message)> on_lost;
  /// Asked when a collective failed: what else is known about the peers ("rank 2 reported ...").
  std::function<std::string(const FlightEntry& failed)> explain;
};

class Communicator;

/// A collective under way. Waiting twice is fine; destruction without wait() is fine only after a
/// failure, because buffers may still be read.
class Handle {
 public:
  Handle() = default;
  bool valid() const { return state_ != nullptr; }
  bool done() const;
  /// Throws PeerError naming rank, collective, step, and what is known about the peers. On CUDA
  /// only the stream waits.
  void wait();

 private:
  friend class Communicator;
  struct State;
  std::shared_ptr<State> state_;
};

/// The collectives of one group. Tensors are contiguous, of dtype fp32, bf16, fp64, int64 or uint8
/// (reduce-scatter and gathers too), and any shape for all_reduce and broadcast; ShapeError
/// otherwise. `name` groups the counters ("grad", "params", "norm"); `detail` tells one of them
/// ("bucket 3"). Calls may come from the autograd thread; the order of calls must be the same on
/// all ranks.
class Communicator {
 public:
  Communicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const { return rank_; }
  int64_t world_size() const { return world_size_; }
  std::string backend() const;

  Handle all_reduce(const at::Tensor& tensor, ReduceOp op, const std::string& name,
                    const std::string& detail = "");
  /// Whether the next two take bf16 inputs for fp32 results, added up in fp32 and never rounded.
  bool widens() const { return transport_->widens(); }
  /// output [n] fp32 gets the reduced input [n] bf16, which stays as it is; kSum and kMean. Counted
  /// as an all_reduce of `input`. Throws InternalError where not widens().
  Handle all_reduce_into(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                         const std::string& name, const std::string& detail = "");
  Handle reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                        const std::string& name, const std::string& detail = "");
  Handle all_gather(const at::Tensor& output, const at::Tensor& input, const std::string& name,
                    const std::string& detail = "");
  Handle broadcast(const at::Tensor& tensor, int64_t root, const std::string& name,
                   const std::string& detail = "");
  /// These tensors will be exchanged again and again, and stay where they are while they live; see
  /// Transport::share. Collective. Throws PeerError.
  void share(const std::vector<at::Tensor>& tensors);
  /// Returns when every rank of the group has come here.
  void barrier(const std::string& name);
  /// Sums of a few numbers over the ranks in one fp64 all-reduce on the host (a small device
  /// tensor with CUDA); every rank gets the same bits.
  std::vector<double> sum(const std::vector<double>& values, const std::string& name);

  /// Step that messages and the flight record name.
  void set_step(int64_t step);
  int64_t step() const;

  std::map<std::string, CollectiveCounter> counters() const;
  void reset_counters();
  /// Counts the collectives of a captured graph once more, when it is replayed: their number and
  /// bytes; times of a graph are not known.
  void count_again(const std::map<std::string, CollectiveCounter>& captured);

  /// Collectives of steps are timed on the device from now on, see device_clock.h; add_times()
  /// brings the times into the counters.
  void time_on(at::Device device);
  /// Null before time_on().
  DeviceClock* clock() const { return clock_.get(); }
  void add_times(const StepTimes& times);

  /// What the host waits for right now, and for how long; nullopt when it does not.
  struct Waiting {
    FlightEntry entry;
    double seconds = 0;
  };
  std::optional<Waiting> waiting() const;
  /// The last collectives, oldest first.
  std::vector<FlightEntry> flight_record() const;
  /// {"group", "rank", "world_size", "backend", "step", "entries": [...]}.
  std::string flight_record_json() const;
  void write_flight_record(const std::filesystem::path& path) const;

  /// Ends what is under way.
  void abort();

 private:
  friend class Handle;
  Handle launch(CollectiveKind kind, const at::Tensor& whole, int64_t wire_bytes,
                const std::string& name, const std::string& detail,
                const std::function<std::unique_ptr<Pending>(Transport&)>& start);
  void await(Handle::State& state);
  [[noreturn]] void fail(const FlightEntry& entry, const std::string& reason);
  FlightEntry* find(int64_t sequence);
  double now() const;
  void watch();
  std::string describe(const FlightEntry& entry) const;
  int64_t global_rank(int64_t rank) const;
  std::string save_flight_record() const;

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<DeviceClock> clock_;
  CommunicatorOptions options_;
  int64_t rank_, world_size_;
  std::chrono::steady_clock::time_point begin_;

  mutable std::mutex mutex_;  // guards everything below
  int64_t step_ = 0;
  int64_t next_sequence_ = 0;
  std::deque<FlightEntry> flight_;
  std::map<std::string, CollectiveCounter> counters_;
  std::optional<int64_t> waiting_;  // sequence
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread watchdog_;
};

}  // namespace longship::dist
