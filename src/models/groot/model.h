#pragma once
// GR00T N1.6 and N1.7: backbone and action head. Parameters carry the names of the public
// checkpoint.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/action_head.h"
#include "models/groot/backbone.h"
#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/spec.h"
#include "nn/module.h"
#include "nn/unit.h"

namespace longship::models {

GrootHeadSizes groot_head_sizes(const GrootSizes& sizes);
GrootHeadPrecision groot_head_precision(const GrootConfig& config, at::ScalarType dtype);

/// Storage dtype of a parameter of a model that works in `dtype`: with bf16 norms, the position
/// embedding and the category-specific biases of the head stay fp32, as their arithmetic does.
at::ScalarType groot_parameter_dtype(at::ScalarType dtype, std::string_view name);

class GrootModel : public nn::Module {
 public:
  /// Shapes only (meta device). Throws ConfigError for sizes that do not fit each other, or a
  /// recompute pattern that matches no unit.
  GrootModel(const GrootConfig& config, const BuildOptions& options);

  /// Gives every parameter uninitialised storage on `device`; without `memory` only the device.
  void allocate(at::Device device, bool memory = true);
  /// Fills every parameter from (seed, name); `sink` gets the fp32 values before rounding.
  void initialise(uint64_t seed, const PreciseSink& sink);

  /// What the head reads, [B, S, width] in the dtype of the model: rows at the right, padding left.
  at::Tensor features(const GrootBatch& batch);
  /// The loss and everything before it. `training`: dropout and left-out states.
  GrootFlow flow(const GrootBatch& batch, bool training);
  /// Pictures and text of a prepared batch as the head reads them without dropout.
  GrootVlContext encode(const GrootBatch& batch);
  /// Euler steps from `noise` [B, H, action width] -> the same shape.
  at::Tensor integrate(const GrootVlContext& context, const GrootBatch& batch,
                       const at::Tensor& noise) const;

  /// Completes batch.layout (host tensors).
  void prepare(GrootBatch& batch) const;

  GrootActionHead& head() { return head_; }
  const GrootConfig& config() const { return config_; }
  const GrootSizes& sizes() const { return sizes_; }
  at::ScalarType dtype() const { return dtype_; }

  /// Called with named activations when set; for locating divergences.
  void set_tap(nn::Tap tap);
  /// Watches the units (plan.h says what belongs to which); null: nobody does.
  void set_hooks(nn::UnitHooks* hooks);
  nn::UnitHooks* hooks() const { return head_.hooks; }
  /// Takes back the recomputation of units that no gradient passes.
  void keep_activations(const std::function<bool(std::string_view unit)>& forward_only);

 private:
  void choose_recomputed(const std::vector<std::string>& patterns);
  bool recomputed(std::string_view unit) const;
  GrootHeadCall call(const GrootBatch& batch, bool training) const;
  GrootVlContext context(const GrootBatch& batch, const GrootHeadCall& call);

  GrootConfig config_;
  GrootSizes sizes_;
  at::ScalarType dtype_;
  nn::Fused fused_;
  std::vector<std::string> recomputed_;  // units
  std::unique_ptr<GrootBackbone> backbone_;
  GrootActionHead head_;
  nn::Tap tap_;
};

}  // namespace longship::models
