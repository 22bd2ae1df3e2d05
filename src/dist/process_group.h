#pragma once
// From a launched process to a group that is known to fit together: meeting at the store, the
// handshake, and communicators.
//
// Time limits. Every rank that finds something wrong says so in the store, so that all ranks end
// with the same message. A rank that never comes ends the others setup_timeout_s after they began;
// a rank whose rank 0 never answers ends setup_timeout_s + 5 s after it began. A peer that dies
// later is noticed by the next collective at once (its connections close), one that hangs after
// collective_timeout_s.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dist/communicator.h"
#include "dist/launch.h"
#include "dist/store.h"

namespace longship::dist {

struct GroupOptions {
  LaunchInfo launch;
  bool cuda = false;  // world(): on device `launch.local_rank`; else Gloo
  CudaTransport transport = CudaTransport::kNccl;  // of groups on devices
  double setup_timeout_s = 300;
  double collective_timeout_s = 600;
  double report_wait_s = 3;             // after a failure, how long to wait for what the peers say
  double warn_after_s = 60;             // watchdog: a longer wait is reported
  std::filesystem::path flight_folder;  // where flight records go on failure; "": nowhere
  /// What must be equal on all ranks, as (what, value): version, hash of the recipe, hash of the
  /// datasets. The number of ranks and the backend are added.
  std::vector<std::pair<std::string, std::string>> facts;
};

/// The processes of this run. Not copyable; outlives its communicators.
class ProcessGroup {
 public:
  /// Meets the other ranks and compares facts. Throws ConfigError where facts differ or a rank
  /// exists twice, PeerError for ranks that do not come, a port in use, a store that cannot be
  /// reached; the same message on every rank. One process without a launcher needs no network.
  static std::unique_ptr<ProcessGroup> connect(const GroupOptions& options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t rank() const { return options_.launch.rank; }
  int64_t world_size() const { return options_.launch.world_size; }
  const LaunchInfo& launch() const { return options_.launch; }
  /// All ranks.
  Communicator& world() { return *world_; }
  /// A group of some ranks, this one among them, in the given order; collective among those ranks.
  /// `name` must be the same on them and not used before by another set of ranks.
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int64_t>& ranks) {
    return make_group(name, ranks, options_.cuda);
  }
  /// `cuda`: on devices, whatever world() uses.
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int64_t>& ranks, bool cuda) {
    return make_group(name, ranks, cuda, options_.transport);
  }
  /// `transport`: of this group on devices.
  std::unique_ptr<Communicator> make_group(const std::string& name,
                                           const std::vector<int64_t>& ranks, bool cuda,
                                           CudaTransport transport);

  /// Tells the peers why this rank leaves, so that their messages can say so; call it before the
  /// error leaves the scope of this object. They learn it when the object goes away: its
  /// connections close first, and rank 0 then keeps the store for report_wait_s + 1 s at most.
  /// Never throws.
  void report_failure(const std::string& why) noexcept;
  /// From now on a thread says in the store, every second, that this process lives. For waits that
  /// no closed connection ends: those for a device.
  void start_heartbeat();
  /// Throws PeerError naming the ranks that have reported a failure, or whose heartbeat has not
  /// been heard for silent_s since this was first called. Every rank must have begun its heartbeat.
  void check_peers(double silent_s);
  /// Normal end: waits until every rank is here (at most collective_timeout_s), so that rank 0 does
  /// not take the store away from ranks that still work. Throws PeerError.
  void close();

 private:
  explicit ProcessGroup(const GroupOptions& options) : options_(options) {}
  std::unique_ptr<Communicator> make_communicator(const std::string& name, int64_t rank,
                                                  const std::vector<int64_t>& ranks, bool cuda,
                                                  CudaTransport transport);
  std::string explain(const FlightEntry& failed);
  void linger(int64_t readers);

  GroupOptions options_;
  void beat(const std::stop_token& stop);

  std::unique_ptr<KeyStore> store_;
  std::unique_ptr<Communicator> world_;
  bool reported_ = false;
  struct Heard {
    int64_t beats = -1;
    std::chrono::steady_clock::time_point at;
  };
  std::vector<Heard> heard_;  // by rank; empty before the first check_peers()
  std::mutex beat_mutex_;
  std::condition_variable_any beat_wake_;
  std::jthread heartbeat_;  // last: joined before the store goes away
};

/// The ranks of one HSDP layout: consecutive ranks shard, equal places in the shard groups
/// replicate. Throws ConfigError unless shard_size divides world_size.
struct HsdpGroups {
  std::vector<int64_t> shard;      // the shard group of `rank`
  std::vector<int64_t> replicate;  // its replica group
};
HsdpGroups hsdp_groups(int64_t rank, int64_t world_size, int64_t shard_size);

/// {1, 2, 3, 7} -> "ranks 1-3, 7"; {2} -> "rank 2".
std::string describe_ranks(const std::vector<int64_t>& ranks);

}  // namespace longship::dist
