#pragma once
// GR00T N1.6 and N1.7: backbone and action head. Parameters carry the names of the public
// checkpoint.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/common/lost_kernels.h"
#include "models/groot/action_head.h"
#include "models/groot/backbone.h"
#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/groot/layout_cache.h"
#include "models/spec.h"
#include "nn/fp8.h"
#include "nn/module.h"
#include "nn/unit.h"

namespace longship::models {

GrootHeadSizes groot_head_sizes(const GrootSizes& sizes);
/// With the slots that the configuration reads, and without dropout in parts that do not train.
GrootHeadSizes groot_head_sizes(const GrootConfig& config);
GrootHeadPrecision groot_head_precision(const GrootConfig& config, at::ScalarType dtype);

/// Storage dtype of a parameter of a model that works in `dtype`: with bf16 norms, the position
/// embedding and the category-specific biases of the head stay fp32, as their arithmetic does.
at::ScalarType groot_parameter_dtype(at::ScalarType dtype, std::string_view name);

/// Which of the kernels that `asked` names such a model cannot have.
std::vector<LostKernel> groot_lost_kernels(const GrootSizes& sizes, const nn::Fused& asked,
                                           at::ScalarType dtype);

class GrootModel : public nn::Module {
 public:
  /// Shapes only (meta device). Throws ConfigError for sizes that do not fit each other, or a
  /// recompute pattern that matches no unit. Warns of kernels that it cannot have.
  GrootModel(const GrootConfig& config, const BuildOptions& options);

  /// Gives every parameter uninitialised storage on `device`; without `memory` only the device.
  void allocate(at::Device device, bool memory = true);
  /// Fills every parameter from (seed, name); `sink` gets the fp32 values before rounding.
  void initialise(uint64_t seed, const PreciseSink& sink);

  /// What the head reads, [B, S, width] in the dtype of the model: rows at the right, padding left.
  at::Tensor features(const GrootBatch& batch);
  /// What features() begins with where nothing of it trains, see Policy::frozen_features(); nobody
  /// watches its units.
  at::Tensor frozen_features(const GrootBatch& batch);
  /// Text layers in front of which nothing trains; nullopt: the backbone has no frozen part.
  void set_frozen_layers(std::optional<int64_t> layers) { frozen_layers_ = layers; }
  std::optional<int64_t> frozen_layers() const { return frozen_layers_; }
  /// The loss and everything before it. `training`: dropout and left-out states.
  GrootFlow flow(const GrootBatch& batch, bool training);
  /// Pictures and text of a prepared batch as the head reads them without dropout.
  GrootVlContext encode(const GrootBatch& batch);
  /// Euler steps from `noise` [B, H, action width] -> the same shape.
  at::Tensor integrate(const GrootVlContext& context, const GrootBatch& batch,
                       const at::Tensor& noise) const;

  /// Completes batch.layout (host tensors). `to_buckets`: text rows are filled up as
  /// BuildOptions::token_bucket says, see text_multiple(). Throws ConfigError naming sample and
  /// slot where this model does not read a sample's slot.
  void prepare(GrootBatch& batch, bool to_buckets) const;
  /// What the places of each of `samples` texts are filled up to a multiple of, so that those of
  /// all together are filled up to the bucket, or as little above as whole samples allow. 1 where
  /// the head reads all of them, because it would read the filling too.
  int64_t text_multiple(int64_t samples) const;

  GrootActionHead& head() { return head_; }
  /// Slots of the category-specific layers that are read, ascending; empty: all.
  const std::vector<int64_t>& slots() const { return head_.sizes().slots; }
  const GrootConfig& config() const { return config_; }
  const GrootSizes& sizes() const { return sizes_; }
  at::ScalarType dtype() const { return dtype_; }

  /// Puts the layers that a pattern of `options` matches into FP8 (README.md has their names).
  /// After allocate(); `forward_only` says of a unit whether everything trainable comes behind it.
  /// Throws ConfigError for a pattern that matches no layer, ShapeError for widths that are no
  /// multiple of 16.
  void use_fp8(const nn::Fp8Options& options, at::Device device,
               const std::function<bool(std::string_view unit)>& forward_only);
  nn::Fp8Layers* fp8() const { return fp8_.get(); }  // null: none
  /// The weights were set: their copies are made anew.
  void weights_changed();

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
  void check_slots(const GrootBatch& batch) const;
  GrootBackboneRun backbone_run(nn::UnitHooks* hooks);
  GrootHeadCall call(const GrootBatch& batch, bool training) const;
  GrootVlContext context(const GrootBatch& batch, const GrootHeadCall& call);

  GrootConfig config_;
  GrootSizes sizes_;
  at::ScalarType dtype_;
  nn::Fused fused_;
  int64_t token_bucket_;
  std::vector<std::string> recomputed_;  // units
  std::optional<int64_t> frozen_layers_;
  std::unique_ptr<GrootGridCache> grid_cache_;  // null: tables of pictures are made for each batch
  std::unique_ptr<GrootBackbone> backbone_;
  GrootActionHead head_;
  std::unique_ptr<nn::Fp8Layers> fp8_;
  nn::Tap tap_;
};

}  // namespace longship::models
