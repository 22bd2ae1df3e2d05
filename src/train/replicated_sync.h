#pragma once
// ddp and zero1: every rank has all weights. ddp: every rank updates everything, from the same
// bits. zero1: every rank updates its part of each bucket, and the parts are gathered, each unit's
// in time for its forward pass; decay-only parameters are updated by every rank in the same way.
//
// One captured pass that is replayed for every micro-batch needs gradients that stay at their
// addresses, and all weights before it begins. On a device a step gathers weights at its begin
// instead of behind the update, so that it is complete in itself and can be captured.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/zero1.h"
#include "train/gradient_sync.h"

namespace longship::train {

class ReplicatedSync final : public GradientSync {
 public:
  /// With zero1 the storage of the policy's parameters moves into flat tensors. Throws ConfigError
  /// when the model is too small for so many ranks.
  ReplicatedSync(dist::Communicator& data, const ParallelSection& section, GraphMode graph,
                 const StepSize& step, models::Policy& policy);
  ~ReplicatedSync() override;
  ReplicatedSync(const ReplicatedSync&) = delete;
  ReplicatedSync& operator=(const ReplicatedSync&) = delete;

  std::string strategy() const override { return sliced() ? "zero1" : "ddp"; }
  bool widens() const override { return reducer().widens(); }
  std::vector<models::ParamInfo> updated() const override { return updated_; }
  void set_values(AdamW& optimizer, const std::string& name, const at::Tensor& whole) override;
  std::vector<StateSlice> own_state(const AdamW& optimizer, bool loading) const override;
  bool has_whole_weights() const override { return true; }
  std::vector<std::pair<std::string, at::Tensor>> weight_sums() const override;

  void begin_step() override;
  void begin_micro_batch(bool last) override { reducer().begin_micro_batch(last); }
  void all_gradients_ready() override { reducer().all_gradients_ready(); }
  void finish() override;
  bool sums_norm() const override { return sliced(); }
  using GradientSync::combine_norm;
  double combine_norm(double norm, bool bad) override;
  void weights_changed() override;
  void wait_weights() override;
  const std::vector<std::string>& missing() const override { return reducer().missing(); }
  const dist::BucketPlan& plan() const override { return reducer().plan(); }
  dist::MemoryForecast held_memory() const override;
  std::vector<dist::Communicator*> communicators() const override { return {&data_}; }

 private:
  struct Piece {
    int64_t rank = 0, begin = 0, end = 0;
  };
  class UnitWaits;
  /// Whether updated() are parts.
  bool sliced() const { return zero1_ != nullptr; }
  void begin_zero1(dist::BucketPlan plan, std::vector<dist::ReducedParam> tensors,
                   dist::GradientBuffers buffers);
  /// The elements of `whole` that belong to this rank's part, 1-D; `whole` itself where parameters
  /// are updated whole; undefined when the rank has none of it.
  at::Tensor own_part(const std::string& name, const at::Tensor& whole) const;
  dist::GradReducer& reducer() { return zero1_ ? zero1_->reducer() : *ddp_; }
  const dist::GradReducer& reducer() const { return const_cast<ReplicatedSync*>(this)->reducer(); }

  dist::Communicator& data_;
  models::Policy& policy_;
  std::vector<models::ParamInfo> parameters_;  // in the order of the plan
  std::vector<models::ParamInfo> updated_;
  std::map<std::string, size_t> index_;     // by name
  std::vector<std::vector<Piece>> pieces_;  // zero1: by parameter; empty for those in no bucket
  std::unique_ptr<dist::GradReducer> ddp_;
  std::unique_ptr<dist::Zero1> zero1_;
  std::unique_ptr<UnitWaits> unit_waits_;  // null: all weights are waited for before the passes
  bool passes_are_captured_;
  bool gathers_in_step_ = false;
  bool gather_due_ = false;  // with that: weights were set since the last gather
};

}  // namespace longship::train
