#pragma once
// GrootModel behind the trainer's interface.

#include <filesystem>
#include <memory>
#include <optional>
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
  void begin_step() override;
  void attach(nn::UnitHooks* hooks) override;
  /// Which rows of the public tables their parts are: "rows.<parameter>", int64, none where all
  /// slots are read; "fp8.scales" where layers multiply in FP8 with delayed scaling.
  std::vector<NamedTensor> training_state() override;
  void load_training_state(std::span<const NamedTensor> state) override;
  std::vector<at::Tensor> shared_maxima() override;
  std::vector<nn::Fp8Measurement> fp8_measurements() override;
  std::vector<std::pair<std::string, std::vector<at::Tensor>>> extra_memory() override;
  bool has_frozen_part() const override { return model_.frozen_layers().has_value(); }
  at::Tensor frozen_features(const Batch& batch) override;
  std::unique_ptr<Batch> behind_frozen_part(const Batch& batch,
                                            const at::Tensor& features) const override;
  std::vector<int64_t> feature_rows(const Batch& batch) const override;
  int64_t num_feature_rows(const Batch& batch) const override;
  using Policy::loss;
  LossResult loss(const Batch& batch) override;
  at::Tensor sample(const Batch& batch, const DrawKey& key) override;
  at::Tensor sample_draws(const Batch& batch, uint64_t seed, int64_t draws) override;
  void initialise(uint64_t seed, const PreciseSink& sink) override;
  void load_weights(const std::filesystem::path& path, const PreciseSink& sink = {}) override;
  std::vector<NamedTensor> export_weights(std::span<const NamedTensor> values) override;
  const StoredWeights* stored_weights() const override { return stored_ ? &*stored_ : nullptr; }

 private:
  /// The batch with its layout, on the model's device.
  GrootBatch ready(const Batch& batch) const;
  /// Whether everything trainable comes behind a unit.
  bool forward_only(std::string_view unit) const;
  /// The part of the training state that says which slots train.
  std::vector<NamedTensor> slot_rows();
  /// Throws CheckpointError where that part of a checkpoint differs from this run's.
  void check_slot_rows(std::span<const NamedTensor> state);
  /// The data's own part of chunks [B, H, width]: what the model adds behind it was never trained.
  at::Tensor real_part(const at::Tensor& chunks) const;

  GrootModel model_;
  std::vector<ParamInfo> parameters_;
  std::optional<StoredWeights> stored_;
};

}  // namespace longship::models
