#pragma once
// The vision tower of Qwen3-VL over packed pictures of different sizes; parameter names as in
// transformers' Qwen3VLVisionModel.
//
// Rows are patches of all pictures behind each other, in blocks of merge * merge (nn/patch_grid.h):
// P patches, P / merge^2 merged tokens.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/layer_runner.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/packed_samples.h"
#include "nn/patch_grid.h"
#include "nn/rope.h"

namespace longship::nn {

struct Qwen3VisionSizes {
  int64_t channels = 3;
  int64_t patch_size = 16;     // pixels
  int64_t temporal_patch = 2;  // frames; a picture is repeated
  int64_t merge = 2;           // patches per side of a merged token
  int64_t position_side = 48;  // the position table is a square grid of this side
  int64_t width = 1024;
  int64_t mlp_dim = 4096;
  int64_t depth = 24;
  int64_t num_heads = 16;
  int64_t out_width = 2048;                   // of merged tokens: the language model's
  std::vector<int64_t> deepstack{5, 11, 17};  // blocks whose output is merged too, rising
  double eps = 1e-6;
  double theta = 1e4;

  int64_t patch_values() const { return channels * temporal_patch * patch_size * patch_size; }
  int64_t block() const { return merge * merge; }
};

/// Angles of the two-dimensional rotary embedding, [P, head_dim / 2]: first half by row, second
/// half by column, each position * theta^(-2i / (head_dim / 2)). rows, columns [P] int64; `dtype`
/// fp32 or fp64. Source: transformers Qwen3VLVisionModel.rot_pos_emb.
at::Tensor patch_angles(const at::Tensor& rows, const at::Tensor& columns, int64_t head_dim,
                        double theta, at::ScalarType dtype);

/// The position embedding of patches between the rows of a table [S, W]: sum over c of weight[:, c]
/// * table[index[:, c]], weights rounded to the dtype of the table, products and sums in it, c
/// rising. index [P, 4] int64, weight [P, 4] -> [P, W]. Differentiable in the table. Source:
/// transformers Qwen3VLVisionModel.fast_pos_embed_interpolate.
at::Tensor interpolate_positions(const at::Tensor& table, const at::Tensor& index,
                                 const at::Tensor& weight);

/// How queries and keys of a pass are turned, in the dtype of the table: fp32, fp64 for fp64
/// weights.
struct PatchRotation {
  RopeTable table;   // [P, 1, head_dim / 2]
  at::Tensor order;  // [P] int32: 0 .. P - 1, rows of the table for the fused rotation
};

class Qwen3VisionAttention : public Module {
 public:
  Qwen3VisionAttention(int64_t width, int64_t num_heads);
  /// The heads' output before proj: x [P, width] -> same; each picture by itself, every patch sees
  /// all of it. fused.rope: rotation and split of q, k, v in one pass.
  at::Tensor mix(const at::Tensor& x, const PackedSamples& pictures, const PatchRotation& rotation,
                 const Fused& fused) const;

  Linear qkv, proj;                    // qkv: query rows, key rows, value rows
  const Fp8Linear* fp8_qkv = nullptr;  // null: the model's dtype
  const Fp8Linear* fp8_out = nullptr;

 private:
  int64_t num_heads_;
};

class Qwen3VisionMlp : public Module {
 public:
  Qwen3VisionMlp(int64_t width, int64_t hidden);
  /// linear_fc2( gelu_tanh(linear_fc1(x)) ); fused.activations: bias and GELU in one pass.
  at::Tensor forward(const at::Tensor& x, const Fused& fused) const;

  Linear linear_fc1, linear_fc2;
  const Fp8Linear* fp8_fc1 = nullptr;
  const Fp8Linear* fp8_fc2 = nullptr;
};

class Qwen3VisionBlock : public Module {
 public:
  explicit Qwen3VisionBlock(const Qwen3VisionSizes& sizes);
  /// The stream [P, width] behind the block. Reads this block's parameters only.
  at::Tensor forward(const at::Tensor& h, const PackedSamples& pictures,
                     const PatchRotation& rotation, const Fused& fused) const;

  LayerNorm norm1;
  Qwen3VisionAttention attn;
  LayerNorm norm2;
  Qwen3VisionMlp mlp;
};

/// Merges every merge * merge patches that lie behind each other: linear_fc2( gelu(linear_fc1(g)) )
/// with GELU by erf, g = groups of normalised patches, or with `norm_groups` normalised groups.
class Qwen3PatchMerger : public Module {
 public:
  Qwen3PatchMerger(const Qwen3VisionSizes& sizes, bool norm_groups);
  /// x [P, width] -> [P / merge^2, out_width].
  at::Tensor forward(const at::Tensor& x, const Fused& fused) const;

  LayerNorm norm;
  Linear linear_fc1, linear_fc2;

 private:
  int64_t block_;
  bool norm_groups_;
};

struct Qwen3VisionFeatures {
  at::Tensor merged;                  // [P / merge^2, out_width]
  std::vector<at::Tensor> deepstack;  // the same shape, one per entry of sizes.deepstack
};

class Qwen3Vision : public Module {
 public:
  /// Throws ConfigError for sizes that do not fit each other.
  explicit Qwen3Vision(const Qwen3VisionSizes& sizes);

  /// patches [P, channels * temporal_patch * patch_size^2], values in order (channel, frame, y, x);
  /// tables of the same P patches and `pictures` (segments of patches) on their device. The dtype
  /// of the results is that of the weights. Taps "vision.patches", "vision.pos_embed",
  /// "vision.rot_pos_emb" (angles [P, head_dim / 2]), "vision_block<l>.in" and
  /// "vision_block<l>.out". Throws ShapeError.
  Qwen3VisionFeatures forward(const at::Tensor& patches, const PatchTables& tables,
                              const PackedSamples& pictures) const;

  const Qwen3VisionSizes& sizes() const { return sizes_; }

  /// Asks for FP8 sites "<prefix>.<block>.qkv", ".out", ".fc1" and ".fc2". The mergers have none.
  void use_fp8(Fp8Layers& layers, const std::string& prefix);

  // Set by the model.
  Fused fused;  // reads `norms`, `activations`, `rope` and `attention`
  /// One call per block: {stream} -> {stream}, and behind the blocks of sizes.deepstack {stream,
  /// merged}, where the unit reads parameters of deepstack_merger_list.<j> too.
  LayerRunner run;
  Tap tap;

 private:
  at::Tensor embed(const at::Tensor& patches, const PatchTables& tables) const;

  Qwen3VisionSizes sizes_;
  at::Tensor patch_weight_;  // [width, channels, temporal_patch, patch_size, patch_size]
  at::Tensor patch_bias_;
  at::Tensor position_;  // [position_side^2, width]
  std::vector<std::unique_ptr<Qwen3VisionBlock>> blocks_;
  Qwen3PatchMerger merger_;
  std::vector<std::unique_ptr<Qwen3PatchMerger>> deepstack_mergers_;
};

}  // namespace longship::nn
