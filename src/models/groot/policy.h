#pragma once
// GrootModel behind the trainer's interface.

#include <filesystem>
#include <span>
#include <vector>

#include "models/groot/model.h"
#include "models/spec.h"

namespace longship::models {

class GrootPolicy : public Policy {
 public:
  /// Random weights from options.seed; the meta device gives shapes only.
  GrootPolicy(const GrootConfig& config, const BuildOptions& options);

  nn::Module& module() override { return model_; }
  GrootModel& model() { return model_; }
  std::vector<ParamInfo> parameters() override { return parameters_; }
  std::vector<std::string> use_order() override;
  void prepare(Batch& batch, const DrawKey& key) const override;
  void prepare_sampling(Batch& batch, const DrawKey& key) const override;
  void attach(nn::UnitHooks* hooks) override { model_.set_hooks(hooks); }
  using Policy::loss;
  LossResult loss(const Batch& batch) override;
  at::Tensor sample(const Batch& batch, const DrawKey& key) override;
  at::Tensor sample_draws(const Batch& batch, uint64_t seed, int64_t draws) override;
  void initialise(uint64_t seed, const PreciseSink& sink) override;
  void load_weights(const std::filesystem::path& path, const PreciseSink& sink = {}) override;
  std::vector<NamedTensor> export_weights(std::span<const NamedTensor> values) override;

 private:
  /// The batch with its layout, on the model's device.
  GrootBatch ready(const Batch& batch) const;
  /// The data's own part of chunks [B, H, width]: what the model adds behind it was never trained.
  at::Tensor real_part(const at::Tensor& chunks) const;

  GrootModel model_;
  std::vector<ParamInfo> parameters_;
};

}  // namespace longship::models
