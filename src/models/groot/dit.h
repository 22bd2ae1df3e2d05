#pragma once
// Transformer blocks of GR00T's action head: the diffusion transformer whose norms are modulated by
// the flow-matching time, and the self-attention over vision-language features. Letters: B samples,
// T action-side tokens, S vision-language rows, D width of the rows at hand.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/dropout.h"
#include "models/groot/vl_rows.h"
#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/packed_samples.h"
#include "nn/unit.h"

namespace longship::models {

/// Dtypes at work. Linear and attention run in `gemm`; the residual stream, the norms and the
/// encoders' sums in `stream`. What the reference's autocast does: gemm bf16, stream fp32.
struct GrootHeadPrecision {
  at::ScalarType gemm = at::kFloat;
  at::ScalarType stream = at::kFloat;
  /// State, actions, mask, noise and the draw of the time are rounded to it, and x_t, the target
  /// and the time are computed in it. N1.6's reference: bf16, so that late times share buckets.
  at::ScalarType inputs = at::kFloat;
};

/// Sites of one block in the order in which the reference draws: output projection of the
/// attention, its result again, hidden layer of the feed-forward part, its result.
inline constexpr int64_t kGrootSitesPerBlock = 4;

/// How the blocks of one pass run.
struct GrootRun {
  GrootHeadPrecision precision;
  nn::Fused fused;
  GrootDropout dropout;
  nn::UnitHooks* hooks = nullptr;                                // null: nobody watches
  std::function<bool(std::string_view)> recomputed;              // empty: no unit is
  std::function<void(std::string_view, const at::Tensor&)> tap;  // empty: none

  at::Tensor drop(const at::Tensor& x, int64_t site) const;
  void record(std::string_view name, const at::Tensor& tensor) const {
    if (tap) tap(name, tensor);
  }
};

/// Scale and shift of an adaptive norm, [B, D] or [1, D]: LN(x) (1 + scale) + shift.
struct GrootModulation {
  at::Tensor scale, shift;
};

/// Keys and values of every cross block, [B, S, heads, head_dim] or packed [N, heads, head_dim];
/// undefined for other blocks.
struct GrootCrossCache {
  std::vector<at::Tensor> keys, values;
};

struct GrootBlockSizes {
  int64_t width = 0;
  int64_t context = 0;  // width of the rows that cross-attention reads; 0: self-attention
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool adaptive = true;       // else the norms have weights of their own
  bool final_dropout = true;  // the second and the fourth site exist
};

/// Attention with biases. Source: diffusers Attention.
class GrootAttention : public nn::Module {
 public:
  explicit GrootAttention(const GrootBlockSizes& sizes);

  /// Asks for FP8 sites "<prefix>.qkv" (self-attention) or "<prefix>.q" and ".kv", and ".out".
  void use_fp8(nn::Fp8Layers& layers, const std::string& prefix);

  nn::Linear to_q, to_k, to_v, to_out;
  // Null: the model's dtype.
  const nn::Fp8Linear* fp8_qkv = nullptr;
  const nn::Fp8Linear* fp8_q = nullptr;
  const nn::Fp8Linear* fp8_kv = nullptr;
  const nn::Fp8Linear* fp8_out = nullptr;

 private:
  bool reads_others_;  // cross-attention
};

/// The feed-forward part, D -> 4 D -> D with gelu_tanh.
class GrootFeedForward : public nn::Module {
 public:
  explicit GrootFeedForward(int64_t width);
  /// Asks for FP8 sites "<prefix>.fc1" and "<prefix>.fc2".
  void use_fp8(nn::Fp8Layers& layers, const std::string& prefix);

  nn::Linear in, out;
  const nn::Fp8Linear* fp8_in = nullptr;
  const nn::Fp8Linear* fp8_out = nullptr;
};

/// x + attention(norm1(x)), then + ff(norm3(x)). Norms without weights have eps 1e-5. Source:
/// Isaac-GR00T BasicTransformerBlock.
class GrootBlock : public nn::Module {
 public:
  explicit GrootBlock(const GrootBlockSizes& sizes);

  /// x [B, T, D] in the stream dtype -> same. `keys` and `values` as keys_values() gives them, with
  /// the mask and presence of their rows; undefined: self-attention, inside the samples of the B *
  /// T rows that `own` names, or of each of the B. `modulation` undefined for a plain norm. The
  /// block's dropout sites begin at `first_site`.
  at::Tensor forward(const at::Tensor& x, const GrootModulation& modulation, const at::Tensor& keys,
                     const at::Tensor& values, const GrootRows& source, const GrootRun& run,
                     int64_t first_site, const nn::PackedSamples& own = {}) const;
  /// rows [..., context] -> keys and values [..., heads, head_dim] in the gemm dtype.
  std::vector<at::Tensor> keys_values(const at::Tensor& rows, const GrootRun& run) const;
  const GrootBlockSizes& sizes() const { return sizes_; }
  /// The sites of attention and feed-forward part.
  void use_fp8(nn::Fp8Layers& layers, const std::string& prefix);

  std::unique_ptr<nn::Linear> norm1_linear;     // adaptive: D -> scale, shift
  std::unique_ptr<nn::LayerNorm> norm1, norm3;  // plain
  GrootAttention attn1;
  GrootFeedForward ff;

 private:
  at::Tensor attend(const at::Tensor& u, at::Tensor keys, at::Tensor values,
                    const GrootRows& source, const GrootRun& run,
                    const nn::PackedSamples& own) const;
  /// Dropout sites of the attention's result and of the feed-forward part's.
  std::vector<int64_t> attention_sites(int64_t first_site) const;
  std::vector<int64_t> feed_forward_sites(int64_t first_site) const;

  GrootBlockSizes sizes_;
};

struct GrootDitSizes {
  int64_t width = 1536;    // heads * head_dim
  int64_t context = 2048;  // width of vision-language rows
  int64_t out = 1024;
  int64_t heads = 32;
  int64_t head_dim = 48;
  int64_t depth = 32;
  bool interleave_self_attention = true;  // odd blocks attend to their own tokens
  bool alternate_vl = true;               // cross blocks read text or pictures, else everything
  int64_t attend_text_every_n_blocks = 2;
  bool final_dropout = true;
};

/// Unit names (nn/unit.h): "dit.<block>", "vl.<block>".
std::string groot_dit_unit(int64_t block);
std::string groot_vl_unit(int64_t block);

/// DiT or AlternateVLDiT. The modulations of all norms depend on the time only and are computed
/// before the blocks, outside of their units.
class GrootDit : public nn::Module {
 public:
  explicit GrootDit(const GrootDitSizes& sizes);

  /// bucket [R] int64 -> [R, width] in the gemm dtype: sinusoid of 256 channels (cosines first),
  /// two layers.
  at::Tensor embed_time(const at::Tensor& bucket, const GrootRun& run) const;
  /// temb [R, width] -> one modulation per block and that of the output, [R, width] each; one
  /// product with `fused.stacked`.
  std::vector<GrootModulation> modulations(const at::Tensor& temb, const GrootRun& run) const;
  /// x [B, T, width] in the stream dtype -> [B, T, out] in the gemm dtype. With `cache` keys and
  /// values of cross blocks are kept there, and read from there where they are already.
  at::Tensor forward(const at::Tensor& x, const std::vector<GrootModulation>& modulations,
                     const GrootVlContext& context, const GrootRun& run, int64_t first_site,
                     GrootCrossCache* cache) const;

  bool is_cross(int64_t block) const { return !sizes_.interleave_self_attention || block % 2 == 0; }
  /// The rows that cross block `block` reads.
  const GrootRows& source(const GrootVlContext& context, int64_t block) const;
  /// FP8 sites of the blocks, below "<unit name of the block>.".
  void use_fp8(nn::Fp8Layers& layers);

 private:
  /// The rows that each block casts keys and values from, in the gemm dtype; undefined where it
  /// casts none. Blocks that read the same rows share one cast (fan_out).
  std::vector<at::Tensor> shared_rows(const GrootVlContext& context, const GrootRun& run,
                                      const GrootCrossCache* cache) const;

  GrootDitSizes sizes_;
  nn::Linear time_in_, time_out_;
  std::vector<std::unique_ptr<GrootBlock>> blocks_;
  nn::Linear proj_out_1_, proj_out_2_;
};

/// Blocks over vision-language rows with plain norms and no mask: padding rows of the reference's
/// table are read like others. Source: Isaac-GR00T SelfAttentionTransformer.
class GrootVlAttention : public nn::Module {
 public:
  GrootVlAttention(int64_t depth, const GrootBlockSizes& sizes);
  /// x [B, S, D] in the stream dtype -> same; the dropout sites begin at 0. `samples` of the B * S
  /// rows, or none: a sample's rows see each other.
  at::Tensor forward(const at::Tensor& x, const GrootRun& run,
                     const nn::PackedSamples& samples) const;
  /// FP8 sites of the blocks, below "<unit name of the block>.".
  void use_fp8(nn::Fp8Layers& layers);

 private:
  std::vector<std::unique_ptr<GrootBlock>> blocks_;
};

}  // namespace longship::models
