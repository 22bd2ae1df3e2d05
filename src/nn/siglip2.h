#pragma once
// SigLIP2 vision transformer for pictures of any size, packed behind each other: patches come as
// rows of values, positions are mixed from a square table, attention stays inside a picture or
// inside windows of it. Parameter names as in Eagle's Siglip2VisionModel. Source of the formulas:
// the vision tower of Eagle-Block2A-2B-v2 as Isaac-GR00T N1.6 has it.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "nn/linear.h"
#include "nn/module.h"
#include "nn/siglip.h"

namespace longship::nn {

struct Siglip2Sizes {
  SiglipSizes layers;          // width, depth, heads, MLP and epsilon; pictures have no fixed size
  int64_t patch_values = 588;  // of one row of patches
  int64_t table_rows = 256;
  std::vector<int64_t> full_attention;  // with windows: layers that see whole pictures
  bool pooling_head = true;             // the checkpoint has one; no pass reads it
};

/// Places of P packed patches; all tensors on the device of the patches.
struct Siglip2Rows {
  at::Tensor position_index;   // [P, K] int64, rows of the table
  at::Tensor position_weight;  // [P, K] fp32
  PackedSamples pictures;
  /// All pictures have as many patches: they are seen as [num_pictures, P / num_pictures].
  int64_t uniform_pictures = 0;
  // With windows: patches by window, and back.
  at::Tensor window_order, window_back;  // [P] int64
  PackedSamples windows;
  // With rotation, in the order of the rows.
  at::Tensor rope_cos, rope_sin;  // [P, 1, head_dim / 2] fp32
};

/// cos and sin of the angles of each patch at (row, column) [P] int64: pairs alternate between the
/// column and the row, frequency base^(-4 i / head_dim) for the i-th of each. [P, 1, head_dim / 2].
std::pair<at::Tensor, at::Tensor> siglip2_rope(const at::Tensor& rows, const at::Tensor& columns,
                                               int64_t head_dim, double base);

/// How a table of side x side positions is resized to `rows` x `columns` as torch's antialiased
/// bilinear interpolation (align_corners false) does: entries of the table and weights, K of them
/// per place, places in rows. Weights of unused entries are 0. fp32.
struct TableMix {
  int64_t taps = 0;
  std::vector<int64_t> index;
  std::vector<float> weight;
};
TableMix mix_position_table(int64_t side, int64_t rows, int64_t columns);

/// Pooling head of a checkpoint, kept as it is.
class Siglip2PoolingHead : public Module {
 public:
  explicit Siglip2PoolingHead(const SiglipSizes& sizes);

 private:
  at::Tensor probe_, in_proj_weight_, in_proj_bias_;
  Linear out_proj_;
  LayerNorm layernorm_;
  Linear fc1_, fc2_;
};

/// Registers everything under "vision_model.".
class Siglip2Tower : public Module {
 public:
  explicit Siglip2Tower(const Siglip2Sizes& sizes);

  /// patches [P, patch_values] fp32 -> patch embeddings + positions [P, width], stream dtype.
  at::Tensor embed(const at::Tensor& patches, const Siglip2Rows& rows,
                   const SiglipPrecision& precision) const;
  /// The encoder layers and the last norm: [P, width] -> [P, width], in the order of the rows. Taps
  /// "vision.embeddings" and "vision_layer<l>.out" [P, width], with windows in their order.
  at::Tensor encode(const at::Tensor& embeddings, const Siglip2Rows& rows,
                    const SiglipPrecision& precision, const Fused& fused = {},
                    const LayerRunner& run = {}) const;
  /// FP8 sites of the layers, named as by use_siglip_fp8().
  void use_fp8(Fp8Layers& layers, const std::string& prefix) {
    use_siglip_fp8(layers_, layers, prefix);
  }

  Tap tap;  // set by the model

 private:
  LayerRunner tapped(const LayerRunner& run) const;

  Siglip2Sizes sizes_;
  at::Tensor patch_weight_;  // [width, patch_values]
  at::Tensor patch_bias_;
  at::Tensor position_;  // [table_rows, width]
  std::vector<std::unique_ptr<SiglipLayer>> layers_;
  LayerNorm post_layernorm_;
  std::unique_ptr<Siglip2PoolingHead> head_;
};

}  // namespace longship::nn
