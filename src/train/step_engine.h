#pragma once
// One optimizer step: forward, backward, gradient norm, clipping, update. The host engine does it
// at once; the device engine enqueues it, eagerly or as captured graphs, and reads results later.
// With several processes every one submits the same steps; gradients are exchanged inside, reports
// are this process's own but for the norm.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/spec.h"
#include "train/gradient_sync.h"
#include "train/graph_mode.h"
#include "train/optimizer.h"

namespace longship::train {

struct StepEngineOptions {
  at::Device device = at::kCPU;
  GraphMode graph = GraphMode::kNone;
  bool copy_ahead = true;    // copies of the next step overlap this one (device engine)
  bool fused_update = true;  // false: the library's optimizer kernels, with host reads
  /// The backward pass gives its own buffers as gradients; false: they keep theirs, zeroed before a
  /// step and added to. Without `sync`, which has its own rule.
  bool hand_over_gradients = true;
  GradientSync* sync = nullptr;  // several processes; must outlive the engine
  /// The policy's frozen part runs as a graph of its own on a stream of its own, beside the step
  /// before (device engine with kFullIteration).
  bool frozen_beside = false;
  int64_t feature_cache_bytes = 0;  // results of the frozen part kept by sample; 0: none
  /// Called again and again while the device engine waits for a step, and once when it has ended,
  /// with the seconds so far; what it throws ends the wait. Empty: the host sleeps until the device
  /// is done.
  std::function<void(double waited_s)> while_waiting = nullptr;
};

/// Learning rate and weight decay of the update that follows `num_updates` updates.
struct UpdateScalars {
  double lr = 0;
  double weight_decay = 0;
};

/// What one step found out.
struct StepReport {
  int64_t step = 0;
  double loss = 0;       // mean over the step's micro-batches
  double grad_norm = 0;  // before clipping
  std::vector<std::pair<std::string, double>> extra;
  bool updated = false;
  /// On the device, since the end of the step before, or since it was submitted where none was in
  /// flight. Host engine: its own time.
  double device_ms = 0;
  double exposed_ms = 0;   // of it, waiting for gradients and weights of other processes
  double comm_ms = 0;      // its collectives from begin to end, whatever ran meanwhile
  int64_t wire_bytes = 0;  // that this process sent in them
  std::string fault;       // empty when loss and norm are finite
  /// Trainable parameters without a gradient on this process, where other processes may have one.
  std::vector<std::string> missing;
};

/// What an engine did, for benches and logs.
struct EngineFacts {
  int64_t captures = 0;          // graphs captured so far
  int64_t graph_nodes = 0;       // nodes of the graphs that one step replays; 0 without graphs
  int64_t eager_steps = 0;       // that had a graph which no longer fitted
  int64_t steps_from_cache = 0;  // whose frozen part came from the feature cache
};

class StepEngine {
 public:
  virtual ~StepEngine() = default;

  /// Enqueues step `step` over prepared host batches, one per micro-batch, with equal weight.
  /// `now` belongs to the update after `num_updates` updates, `next` to the one behind it: when the
  /// previous step's report has not been taken yet, the host does not know which comes.
  virtual void submit(int64_t step, std::vector<std::unique_ptr<models::Batch>> micro,
                      int64_t num_updates, const UpdateScalars& now, const UpdateScalars& next) = 0;
  /// Steps submitted whose report has not been taken.
  virtual int64_t in_flight() const = 0;
  /// How many steps should stay in flight so that the device never waits for the host. After a step
  /// with a fault, those in flight change nothing until reset().
  virtual int64_t lag() const = 0;
  /// The report of the oldest step in flight; waits for it.
  virtual StepReport take_report() = 0;
  /// Called after weights, moments or the number of updates were set from outside, and to go on
  /// after a fault.
  virtual void reset(int64_t num_updates) = 0;
  virtual EngineFacts facts() const { return {}; }
};

/// `policy` and `optimizer` must outlive the engine.
std::unique_ptr<StepEngine> make_step_engine(models::Policy& policy, AdamW& optimizer,
                                             const StepEngineOptions& options);

/// Text of a fault, naming the samples; empty when every loss and the norm are finite. One loss and
/// one list of sample ids per micro-batch.
std::string describe_fault(const std::vector<double>& losses, double grad_norm,
                           const std::vector<std::vector<int64_t>>& sample_ids);

}  // namespace longship::train
