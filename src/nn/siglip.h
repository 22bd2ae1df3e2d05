#pragma once
// SigLIP vision transformer without pooling head, parameter names as in transformers'
// SiglipVisionModel.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/layer_runner.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module.h"
#include "nn/norm.h"
#include "nn/packed_samples.h"
#include "nn/unit.h"

namespace longship::nn {

struct SiglipSizes {
  int64_t image_size = 224;  // pixels, square
  int64_t patch_size =
      14;  // stride = size, VALID: surplus pixels on the right and at the bottom are ignored
  int64_t width = 1152;
  int64_t depth = 27;
  int64_t num_heads = 16;
  int64_t mlp_dim = 4304;
  double eps = 1e-6;
  int64_t num_tokens() const { return (image_size / patch_size) * (image_size / patch_size); }
};

/// Dtypes of the vision tower: GEMMs run in `gemm`, the residual stream and the norms in `stream`.
struct SiglipPrecision {
  at::ScalarType gemm = at::kFloat;
  at::ScalarType stream = at::kFloat;
};

/// Pictures of different sizes behind each other: the rows are [P, width] then.
struct SiglipRows {
  PackedSamples pictures;  // what sees each other: whole pictures, or windows of them
  at::Tensor cos, sin;  // [P, 1, head_dim / 2], rotation of the pairs (2i, 2i + 1); undefined: none
};

class SiglipAttention : public Module {
 public:
  SiglipAttention(int64_t width, int64_t num_heads);
  /// The heads' output before out_proj: x [V, T, width], or [P, width] with `rows`, in the GEMM
  /// dtype -> same.
  at::Tensor mix(const at::Tensor& x, const Fused& fused, const SiglipRows* rows = nullptr) const;

  Linear q_proj, k_proj, v_proj, out_proj;
  const Fp8Linear* fp8_qkv = nullptr;  // null: the model's dtype
  const Fp8Linear* fp8_out = nullptr;

 private:
  int64_t num_heads_;
};

class SiglipLayer : public Module {
 public:
  explicit SiglipLayer(const SiglipSizes& sizes);
  /// x: the residual stream and its norm by this layer's layer_norm1 -> the stream behind the layer
  /// and its norm by `next`.
  Normed forward(const Normed& x, const LayerNorm& next, const SiglipPrecision& precision,
                 const Fused& fused, const SiglipRows* rows = nullptr) const;

  LayerNorm layer_norm1;
  SiglipAttention self_attn;
  LayerNorm layer_norm2;
  Mlp mlp;
};

/// What the rows of layer l see; null where the pictures are [V, T, width]. Shared, because a layer
/// that is computed again needs them in the backward pass.
using SiglipRowsOf = std::function<std::shared_ptr<const SiglipRows>(int64_t layer)>;

/// Runs the layers in order, each under `run`. Layer l applies the first norm of layer l + 1, the
/// last one `last`; the first norm of layer 0 is outside of all. Returns the last norm's output.
at::Tensor run_siglip_layers(const std::vector<std::unique_ptr<SiglipLayer>>& layers,
                             const LayerNorm& last, const at::Tensor& embeddings,
                             const SiglipPrecision& precision, const Fused& fused,
                             const LayerRunner& run, const SiglipRowsOf& rows_of = {});

/// Asks for FP8 sites "<prefix>.<layer>.qkv", ".out", ".fc1" and ".fc2".
void use_siglip_fp8(const std::vector<std::unique_ptr<SiglipLayer>>& layers, Fp8Layers& fp8,
                    const std::string& prefix);

/// Registers everything under "vision_model.".
class SiglipTower : public Module {
 public:
  explicit SiglipTower(const SiglipSizes& sizes);

  /// images [V, 3, S, S] fp32 in [-1, 1] -> patch embeddings + positions [V, T, width], stream
  /// dtype. Throws ShapeError.
  at::Tensor embed(const at::Tensor& images, const SiglipPrecision& precision) const;
  /// The encoder layers and the last norm: [V, T, width] -> [V, T, width] in the stream dtype.
  at::Tensor encode(const at::Tensor& embeddings, const SiglipPrecision& precision,
                    const Fused& fused = {}, const LayerRunner& run = {}) const;

  const SiglipSizes& sizes() const { return sizes_; }

  void use_fp8(Fp8Layers& layers, const std::string& prefix) {
    use_siglip_fp8(layers_, layers, prefix);
  }

 private:
  SiglipSizes sizes_;
  at::Tensor patch_weight_;  // [width, 3, patch, patch]
  at::Tensor patch_bias_;
  at::Tensor position_;  // [T, width]
  std::vector<std::unique_ptr<SiglipLayer>> layers_;
  LayerNorm post_layernorm_;
};

}  // namespace longship::nn
