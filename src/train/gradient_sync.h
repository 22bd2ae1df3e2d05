#pragma once
// What turns one process's gradients into those of all: ddp and zero1 around the optimizer.
//
// The step of an engine, in this order:
//   begin_step()              gradients are gone, or zero in their buckets; with zero1 weights are
//                             whole when their unit's turn comes in the forward pass
//   begin_micro_batch(last)   before each forward and backward pass
//   finish()                  gradients of what the optimizer updates are means over the ranks
//   combine_norm()            zero1: the norm of all from that of each rank's part
//   (the update)
//   begin_gather()            zero1: the others' new weights begin to come
// ddp: every rank updates everything, from the same bits. zero1: every rank updates its part of
// each bucket; decay-only parameters are updated by every rank in the same way.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/zero1.h"
#include "models/spec.h"
#include "train/checkpoint_state.h"
#include "train/optimizer.h"
#include "train/recipe.h"

namespace longship::train {

/// Parameters in the order in which the policy uses them. Throws InternalError when its list of
/// names is not that of its parameters.
std::vector<models::ParamInfo> parameters_in_use_order(models::Policy& policy);

/// The plan of a policy's parameters, given in the order of use. Row-sparse tables have external
/// gradients; frozen and decay-only parameters have none; those that share an allocation and lie
/// behind each other in it (nn::Module::register_stack) stay together.
dist::BucketPlan plan_gradients(const std::vector<models::ParamInfo>& parameters,
                                const ParallelSection& section, int64_t world_size);

class GradientSync {
 public:
  /// With zero1 the storage of the policy's parameters moves into flat tensors. Throws ConfigError
  /// when the model is too small for so many ranks.
  GradientSync(dist::Communicator& data, const ParallelSection& section, models::Policy& policy);
  ~GradientSync();

  /// What this process's optimizer updates, for AdamW: the parameters themselves, or 1-D parts of
  /// them under their names, with decay-only parameters whole.
  std::vector<models::ParamInfo> updated() const { return updated_; }
  /// "ddp" or "zero1".
  std::string strategy() const { return sliced() ? "zero1" : "ddp"; }
  /// Whether updated() are parts.
  bool sliced() const { return zero1_ != nullptr; }
  /// The elements of `whole`, a tensor of the parameter's shape, that belong to this rank's part,
  /// 1-D; `whole` itself where parameters are updated whole; undefined when the rank has none of
  /// it.
  at::Tensor own_part(const std::string& name, const at::Tensor& whole) const;
  /// This rank's part of the optimizer's state, AdamW::state() of updated(): whose slices cover
  /// every tensor once over all ranks. `loading`: of what is updated whole by every rank each one
  /// has all, otherwise (saving) an even share, or rank 0 has it.
  std::vector<StateSlice> own_state(const AdamW& optimizer, bool loading) const;

  /// For engines that capture one pass and replay it for every micro-batch: gradients stay at their
  /// addresses (otherwise a pass hands its own buffers over), and all weights are whole before the
  /// first pass (otherwise before the unit that reads them).
  void passes_are_captured();
  /// For engines that capture whole steps: weights are gathered at the begin of the next step, a
  /// part of the same graph, instead of behind the update. begin_gather() only notes then that they
  /// are due, and is called after every replay too.
  void steps_are_captured() { gather_in_step_ = true; }
  void begin_step();
  void begin_micro_batch(bool last) { reducer().begin_micro_batch(last); }
  /// In place of hooks, where the passes were replayed from a graph: every gradient of the last
  /// one is complete.
  void all_gradients_ready() { reducer().all_gradients_ready(); }
  void finish();
  /// Whether the norm of the optimizer's gradients is that of this rank's part only.
  bool sums_norm() const { return sliced(); }
  /// The norm of all gradients, the same bits on every rank, from that of the optimizer's; NaN
  /// everywhere when any rank says `bad`.
  double combine_norm(double norm, bool bad);
  /// The same in place on the device, fp64 [1], without the host; only with sums_norm().
  void combine_norm(const at::Tensor& norm);
  void begin_gather();
  /// All weights are whole (on CUDA: for work on the current stream). Collective where they are
  /// due.
  void wait_weights();

  /// Trainable parameters that got no gradient on this rank in the last step.
  const std::vector<std::string>& missing() const { return reducer().missing(); }
  const dist::BucketPlan& plan() const { return reducer().plan(); }
  dist::Communicator& communicator() { return data_; }

 private:
  struct Piece {
    int64_t rank = 0, begin = 0, end = 0;
  };
  class UnitWaits;
  dist::GradReducer& reducer() { return zero1_ ? zero1_->reducer() : *ddp_; }
  const dist::GradReducer& reducer() const { return const_cast<GradientSync*>(this)->reducer(); }

  dist::Communicator& data_;
  models::Policy& policy_;
  std::vector<models::ParamInfo> parameters_;  // in the order of the plan
  std::vector<models::ParamInfo> updated_;
  std::map<std::string, size_t> index_;     // by name
  std::vector<std::vector<Piece>> pieces_;  // zero1: by parameter; empty for those in no bucket
  std::unique_ptr<dist::GradReducer> ddp_;
  std::unique_ptr<dist::Zero1> zero1_;
  std::unique_ptr<UnitWaits> unit_waits_;  // null: all weights are waited for before the passes
  bool gather_in_step_ = false, gather_due_ = false;
};

}  // namespace longship::train
