#pragma once
// What makes one step of several processes the step of all: gradients, and where they are divided,
// weights, around the passes and the optimizer.
//
// The step of an engine, in this order:
//   begin_step()              the gradients of the step before are gone
//   begin_micro_batch(last)   before each forward and backward pass
//   finish()                  gradients of what the optimizer updates are means over the ranks
//   combine_norm()            the norm of all from that of each rank's part, where these are parts
//   (the update)
//   weights_changed()         the others' new weights begin to come, or will be gathered
// replicated_sync.h: ddp and zero1, where every rank has all weights. sharded_sync.h: fsdp and
// hsdp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dist/plan.h"
#include "models/spec.h"
#include "train/checkpoint_state.h"
#include "train/graph_mode.h"
#include "train/optimizer.h"
#include "train/recipe.h"

namespace longship::train {

/// Parameters in the order in which the policy uses them. Throws InternalError when its list of
/// names is not that of its parameters.
std::vector<models::ParamInfo> parameters_in_use_order(models::Policy& policy);

/// What the plans need to know of a policy's parameters, and these in the same order: that of use,
/// but members of a stack (nn::Module::register_stack) behind each other. Row-sparse tables have
/// external gradients; frozen and decay-only parameters have none.
/// `samples`: of a step, on one process; a bound for the rows of such tables that it touches.
struct PlannedParameters {
  std::vector<dist::ParamSpec> specs;
  std::vector<models::ParamInfo> infos;
};
PlannedParameters parameters_to_plan(models::Policy& policy, int64_t samples);

/// A step of one process.
struct StepSize {
  int64_t passes = 1;
  int64_t samples = 1;  // of all passes
};

/// The plan for such parameters. Its costs are those of any strategy (dist::predict_memory,
/// predict_communication); ddp and zero1 also go by its buckets.
dist::BucketPlan plan_gradients(std::vector<dist::ParamSpec> specs, const ParallelSection& section,
                                int64_t world_size);

class GradientSync {
 public:
  /// What the collectives of a step moved, by communicator and name.
  using Traffic = std::vector<std::map<std::string, dist::CollectiveCounter>>;

  virtual ~GradientSync() = default;

  /// As in parallel.strategy.
  virtual std::string strategy() const = 0;
  /// Whether gradients are sent as they are and added up in the wider type.
  virtual bool widens() const { return false; }
  /// What this process's optimizer updates, for AdamW: the parameters themselves, or 1-D parts of
  /// them under their names.
  virtual std::vector<models::ParamInfo> updated() const = 0;
  /// Gives a parameter its values, `whole` in fp32 and of its shape: to the masters of `optimizer`
  /// (made of updated()) and, where the policy itself has no memory for them, to this rank's part.
  virtual void set_values(AdamW& optimizer, const std::string& name, const at::Tensor& whole) = 0;
  /// This rank's part of the optimizer's state, AdamW::state() of updated(): whose slices cover
  /// every tensor once over all ranks. `loading`: of what several ranks update in the same way each
  /// one has all, otherwise (saving) one of them, or each an even share.
  virtual std::vector<StateSlice> own_state(const AdamW& optimizer, bool loading) const = 0;
  /// Whether the policy holds its parameters as a whole. Where it does not, own_state() for saving
  /// has the frozen ones too, as "param.<name>".
  virtual bool has_whole_weights() const = 0;
  /// For every parameter the sum of the bits of its values as integers: equal on ranks that began
  /// with the same weights. int64 scalars. After set_values() of all.
  virtual std::vector<std::pair<std::string, at::Tensor>> weight_sums() const = 0;

  virtual void begin_step() = 0;
  virtual void begin_micro_batch(bool last) = 0;
  /// In place of hooks, where the passes were replayed from a graph: every gradient of the last
  /// one is complete.
  virtual void all_gradients_ready() = 0;
  virtual void finish() = 0;
  /// Whether the norm of the optimizer's gradients is that of this rank's part only.
  virtual bool sums_norm() const = 0;
  /// The norm of all gradients, the same bits on every rank, from that of the optimizer's; NaN
  /// everywhere when any rank says `bad`.
  virtual double combine_norm(double norm, bool bad) = 0;
  /// The same in place on the device, fp64 [1], without the host; only with sums_norm().
  void combine_norm(const at::Tensor& norm);
  /// Weights were set: by the update, or from outside. With captured steps it is called after every
  /// replay too.
  virtual void weights_changed() = 0;
  /// All weights are whole (on CUDA: for work on the current stream), with has_whole_weights().
  /// Collective where they are due.
  virtual void wait_weights() = 0;

  /// Trainable parameters that got no gradient on this rank in the last step.
  virtual const std::vector<std::string>& missing() const = 0;
  /// What its costs are predicted from.
  virtual const dist::BucketPlan& plan() const = 0;
  /// Bytes it holds, by component: parameters, gradients, reduce_buffers, gathered.
  virtual dist::MemoryForecast held_memory() const = 0;
  /// Those whose collectives exchange gradients and weights; first that of the ranks that divide
  /// the weights or the optimizer's state.
  virtual std::vector<dist::Communicator*> communicators() const = 0;
  /// Rank 0 of all.
  bool first() const;

  // ---- Times on a device, for engines that enqueue steps. --------------------------------------

  /// What the stamps of a step mean, by communicator.
  using Timed = std::vector<dist::TimedStep>;
  /// Once. `device`: a CUDA device.
  void time_on(at::Device device);
  /// Frame the enqueueing, or capture, of a step.
  void begin_times();
  Timed end_times();
  /// Copies for read_times(), pinned, enqueued on the current stream behind the step.
  std::vector<at::Tensor> copy_stamps(const Timed& step) const;
  /// Milliseconds of all collectives of a step, and how long the step's work waited for them.
  struct Times {
    double collectives = 0, waited = 0;
  };
  /// When the copies are there: brings the times of collectives into the counters too.
  Times read_times(const Timed& step, const std::vector<at::Tensor>& stamps);

  /// Counted so far.
  Traffic traffic() const;
  dist::CollectiveCounter total_traffic() const;
  /// Since `before`.
  Traffic traffic_since(const Traffic& before) const;
  /// Counts what is inside a captured step, when that is replayed.
  void count_again(const Traffic& captured);
};

/// Sums of bits as GradientSync::weight_sums() has them. `values`: fp32 or bf16.
at::Tensor sum_of_bits(const at::Tensor& values);

/// That of the recipe's strategy, for an engine that captures `graph`. `policy` must outlive it.
/// `data` and `replicas`: of Parallel. Throws ConfigError when the model is too small for so many
/// ranks, or cannot be divided.
std::unique_ptr<GradientSync> make_gradient_sync(dist::Communicator& data,
                                                 dist::Communicator* replicas,
                                                 const ParallelSection& section, GraphMode graph,
                                                 const StepSize& step, models::Policy& policy);

}  // namespace longship::train
