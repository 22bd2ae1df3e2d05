#pragma once
// The vision-language backbones of GR00T: pictures and text to one row of features per token.
// Parameters carry the public names below "backbone.".

#include <ATen/core/Tensor.h>

#include <memory>

#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/layer_runner.h"
#include "nn/module.h"

namespace longship::models {

/// What a model attaches to its backbone.
struct GrootBackboneRun {
  at::ScalarType dtype = at::kFloat;  // of products and both streams
  nn::Fused fused;
  nn::LayerRunner vision, text;  // one call per layer
  nn::Tap tap;
};

class GrootBackbone : public nn::Module {
 public:
  /// A prepared batch on the model's device -> the stream in front of text layer `layer`,
  /// [B * S, width] in the order of its text rows.
  virtual at::Tensor begin(const GrootBatch& batch, const GrootBackboneRun& run, int64_t layer) = 0;
  /// From there to the features, same shape.
  virtual at::Tensor finish(const at::Tensor& stream, const GrootBatch& batch,
                            const GrootBackboneRun& run, int64_t layer) = 0;
  /// Asks for the FP8 sites of the layers, "vision.<l>.*" and "text.<l>.*".
  virtual void use_fp8(nn::Fp8Layers& layers) = 0;
};

/// N1.6: SigLIP2, a projector over blocks of 2 x 2 patches, Qwen3 with its final norm. N1.7:
/// Qwen3-VL; `final_norm`: whether its last norm is applied.
std::unique_ptr<GrootBackbone> make_groot_backbone(const GrootSizes& sizes, bool final_norm);

}  // namespace longship::models
