#pragma once
// fsdp and hsdp: every rank of a shard group has an even part of the weights, their gradients,
// masters and moments; units of the model are gathered while they run (dist/fsdp.h). Decay-only
// parameters are divided like the others, frozen ones too.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/fsdp.h"
#include "train/gradient_sync.h"

namespace longship::train {

class ShardedSync final : public GradientSync {
 public:
  /// Takes over the storage of the policy's parameters, which may be without memory
  /// (BuildOptions::allocate), and watches its units. Throws ConfigError for a family that cannot
  /// be watched.
  ShardedSync(dist::Communicator& shard, dist::Communicator* replicas,
              const ParallelSection& section, const StepSize& step, models::Policy& policy);
  ~ShardedSync() override;
  ShardedSync(const ShardedSync&) = delete;
  ShardedSync& operator=(const ShardedSync&) = delete;

  std::string strategy() const override { return replicas_ != nullptr ? "hsdp" : "fsdp"; }
  bool widens() const override { return fsdp_->widens(); }
  std::vector<models::ParamInfo> updated() const override { return updated_; }
  void set_values(AdamW& optimizer, const std::string& name, const at::Tensor& whole) override;
  std::vector<StateSlice> own_state(const AdamW& optimizer, bool loading) const override;
  bool has_whole_weights() const override { return false; }
  std::vector<std::pair<std::string, at::Tensor>> weight_sums() const override;

  void begin_step() override;
  void begin_micro_batch(bool last) override { fsdp_->begin_micro_batch(last); }
  void all_gradients_ready() override;
  void finish() override { fsdp_->finish(); }
  bool sums_norm() const override { return true; }
  using GradientSync::combine_norm;
  double combine_norm(double norm, bool bad) override;
  void weights_changed() override { fsdp_->weights_changed(); }
  void wait_weights() override {}
  const std::vector<std::string>& missing() const override { return missing_; }
  const dist::BucketPlan& plan() const override { return plan_; }
  dist::MemoryForecast held_memory() const override;
  std::vector<dist::Communicator*> communicators() const override;

 private:
  struct Part {
    int64_t begin = 0, end = 0;  // of this rank, in elements of the parameter
  };

  dist::Communicator& shard_;
  dist::Communicator* replicas_;  // null: one copy
  models::Policy& policy_;
  std::map<std::string, models::ParamInfo> parameters_;
  std::map<std::string, Part> parts_;  // by parameter; absent: none of it
  std::vector<models::ParamInfo> updated_;
  std::map<std::string, at::Tensor> sums_;  // of the values given to set_values()
  std::vector<std::string> missing_;        // always empty: Fsdp refuses what has no gradient
  dist::BucketPlan plan_;
  std::unique_ptr<dist::Fsdp> fsdp_;
};

}  // namespace longship::train
