#pragma once
// The processes of one training run: which device and which samples are this one's, and the talk by
// which all of them do the same at every step.
//
// Two groups. The control plane is Gloo on the host: facts, decisions, reports of steps, waiting
// for a checkpoint. The data plane moves gradients and weights: on CUDA the copy engines or NCCL
// (parallel.transport), Gloo on the CPU.

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/launch.h"
#include "dist/process_group.h"
#include "train/peer_watch.h"
#include "train/recipe.h"

namespace longship::train {

/// Whether the recipe can be trained by the launched processes: a strategy where there are several,
/// one that goes with the recipe's graphs and types, and a global batch that divides. Throws
/// ConfigError naming the keys and numbers.
void check_parallel(const Recipe& recipe, const dist::LaunchInfo& launch);

/// Whether the strategy divides the weights themselves: fsdp and hsdp.
bool shards_weights(const ParallelSection& section);
/// hsdp: how many processes share one copy of the model, from parallel.shard and replicate. Throws
/// ConfigError when these do not fit the processes.
int64_t hsdp_shard_size(const ParallelSection& section, const dist::LaunchInfo& launch);

/// The texts of all ranks, by rank. Collective.
std::vector<std::string> gather_texts(dist::Communicator& group, const std::string& text,
                                      const std::string& name);

/// Runs `work`, which may take very different times on the ranks and does not throw, and returns
/// when all are done. Meanwhile the ranks tell each other that they live, so that a lost one is
/// noticed as in any collective. Throws PeerError. Collective.
void keep_beating(dist::Communicator& group, const std::function<void()>& work);

class Parallel {
 public:
  /// One process: every call below returns at once.
  Parallel() = default;
  /// Checks the recipe (check_parallel), meets the other processes, and compares the program's
  /// version and the recipe key by key. One process needs no network. Throws ConfigError,
  /// PeerError; the same message in every process.
  static std::unique_ptr<Parallel> connect(const Recipe& recipe, const dist::LaunchInfo& launch);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  bool distributed() const { return launch_.distributed(); }
  int64_t rank() const { return launch_.rank; }
  int64_t world_size() const { return launch_.world_size; }
  /// Rank 0 owns the run folder and speaks to the user.
  bool first() const { return rank() == 0; }
  const dist::LaunchInfo& launch() const { return launch_; }

  /// The device of train.device for this process; with several, the GPU of its number on the host,
  /// which becomes the current one. Throws ConfigError for cuda:N with several processes,
  /// DeviceError when the host has fewer GPUs than processes.
  c10::Device device(const Recipe& recipe) const;
  /// Makes the data plane for tensors on `device`. Collective.
  void open_data_plane(c10::Device device);
  /// Moves weights and gradients: between all processes; with hsdp between those that share a copy
  /// of the model. Null with one process.
  dist::Communicator* data() const { return data_.get(); }
  /// hsdp: between the processes with the same part of their copies; null otherwise.
  dist::Communicator* replicas() const { return replicas_.get(); }
  /// Both, as far as they are there.
  std::vector<dist::Communicator*> data_plane() const;

  /// All processes over Gloo on the host, for a thread of its own. Collective; must not outlive
  /// this object.
  std::unique_ptr<dist::Communicator> make_host_group(const std::string& name);

  // ---- Talk. Collective: every process makes the same calls in the same order. ----

  /// The texts of all ranks, by rank.
  std::vector<std::string> gather_texts(const std::string& text);
  /// Rank 0's text.
  std::string from_first(const std::string& text);
  /// One row of numbers per rank. Every rank gives as many.
  std::vector<std::vector<double>> gather(const std::vector<double>& values);
  /// Whether any rank says so.
  bool any(bool value);
  /// Throws ConfigError "the ranks have different WHAT: ..." naming ranks and values unless all
  /// values are equal.
  void agree(const std::string& what, const std::string& value);
  /// Runs `work`, which may take very different times on the ranks (rank 0 writes a file, the
  /// others do nothing): returns when all are done, and notices at once when a process dies
  /// meanwhile. An Error thrown on one rank is thrown on all. `work` may use the data plane, not
  /// these calls.
  void together(const std::function<void()>& work);

  /// The step that messages of both planes name.
  void set_step(int64_t step);
  /// Called again and again while the host has waited `waited_s` for a device whose work needs the
  /// other processes: throws PeerError once one of them is known to be dead, or after
  /// parallel.timeout_s.
  void watch(double waited_s);
  /// With GPUs: what ends the process when a peer is lost and the thread that trains stands still
  /// inside the driver, where no error reaches it. Called on another thread, with what to say.
  /// Without one such a process hangs.
  void set_last_resort(std::function<void(const std::string& why)> end) {
    last_resort_ = std::move(end);
  }
  /// For an error that this process leaves with: the others learn why, unless all throw it.
  void leave(const std::string& why) noexcept;
  /// Marks the error that is about to be thrown as one that every rank throws by itself.
  void all_leave() { agreed_ = true; }
  /// Normal end: waits until every process is here.
  void close();

 private:
  dist::Communicator& control() { return group_->world(); }
  void check_peers();
  void start_watch();

  dist::LaunchInfo launch_;
  std::unique_ptr<dist::ProcessGroup> group_;
  std::unique_ptr<dist::Communicator> data_, replicas_;  // go away before their group
  std::optional<int64_t> shard_size_;                    // of hsdp
  bool agreed_ = false;
  double timeout_s_ = 0;
  std::string transport_;
  int64_t step_ = 0;
  double next_check_s_ = 0;
  std::function<void(const std::string&)> last_resort_;
  std::mutex check_mutex_;            // both threads ask after the peers
  std::unique_ptr<PeerWatch> watch_;  // with GPUs; last: uses all of the above
};

}  // namespace longship::train
