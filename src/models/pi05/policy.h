#pragma once
// Pi05Model behind the trainer's interface.

#include <filesystem>
#include <span>
#include <vector>

#include "models/pi05/model.h"
#include "models/spec.h"

namespace longship::models {

class Pi05Policy : public Policy {
 public:
  /// Random weights from options.seed; the meta device gives shapes only.
  Pi05Policy(const Pi05Config& config, const BuildOptions& options);

  nn::Module& module() override { return model_; }
  Pi05Model& model() { return model_; }
  std::vector<ParamInfo> parameters() override { return parameters_; }
  std::vector<std::string> use_order() override;
  void prepare(Batch& batch, const DrawKey& key) const override;
  void prepare_sampling(Batch& batch, const DrawKey& key) const override;
  void begin_step() override;
  void attach(nn::UnitHooks* hooks) override;
  std::vector<NamedTensor> training_state() override;
  void load_training_state(std::span<const NamedTensor> state) override;
  std::vector<at::Tensor> shared_maxima() override;
  std::vector<nn::Fp8Measurement> fp8_measurements() override;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> extra_memory() override;
  using Policy::loss;
  LossResult loss(const Batch& batch) override;
  at::Tensor sample(const Batch& batch, const DrawKey& key) override;
  at::Tensor sample_draws(const Batch& batch, uint64_t seed, int64_t draws) override;
  void initialise(uint64_t seed, const PreciseSink& sink) override;
  void load_weights(const std::filesystem::path& path, const PreciseSink& sink = {}) override;
  std::vector<NamedTensor> export_weights(std::span<const NamedTensor> values) override;

  /// The terms behind loss(), for a prepared batch.
  Pi05Flow flow(const Pi05Batch& batch) const;
  /// Mean of flow.elem over what the preset counts: all padded dims (openpi) or the real ones
  /// (loongforge), all steps or those inside the episode (mask_action_padding). [] fp32.
  at::Tensor reduce(const Pi05Flow& flow, const Pi05Batch& batch) const;

 private:
  /// Adds nothing, but ties parameters that this batch cannot reach into the graph, so that they
  /// get zero gradients.
  at::Tensor with_unreached_parameters(at::Tensor loss, const Pi05Batch& batch) const;
  at::Tensor real_dims(const at::Tensor& actions) const;
  LossResult loss_of(const Pi05Batch& batch);
  at::Tensor draws_of(const Pi05Batch& batch, uint64_t seed, int64_t draws) const;
  LossResult fused_loss(const Pi05Batch& batch);

  Pi05Model model_;
  std::vector<ParamInfo> parameters_;
};

}  // namespace longship::models
