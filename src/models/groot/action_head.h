#pragma once
// The flow-matching action head of GR00T N1.6 and N1.7: backbone features, state and noisy actions
// in, velocities out. Letters: B samples, S padded vision-language rows, L state steps, H horizon,
// A padded action width, E embodiment slots.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/dit.h"
#include "nn/category_linear.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/unit.h"

namespace longship::models {

/// Defaults: the public N1.7 checkpoint.
struct GrootHeadSizes {
  int64_t version = 17;           // 16 or 17
  int64_t backbone_width = 2048;  // features of the backbone
  int64_t hidden = 1024;          // state encoder, DiT output, action decoder
  int64_t width = 1536;           // DiT, heads * head_dim
  int64_t state_dim = 132;        // steps of history times padded state width
  int64_t action_dim = 132;
  int64_t horizon = 40;
  int64_t embodiments = 32;
  std::vector<int64_t> slots = {};  // embodiments that are read, ascending; empty: all
  int64_t heads = 32, head_dim = 48, depth = 32;
  bool interleave_self_attention = true;
  bool alternate_vl = true;
  int64_t attend_text_every_n_blocks = 2;
  int64_t vl_depth = 4, vl_heads = 32, vl_head_dim = 64;  // depth 0: no self-attention of features
  bool has_vlln = true;
  int64_t position_rows = 1024;  // 0: no position embedding
  double noise_s = 0.999;
  int64_t time_buckets = 1000;
  int64_t inference_steps = 4;
  double dropout = 0.2, vl_dropout = 0.2;  // for whoever draws the masks
  bool final_dropout = true, vl_final_dropout = true;
  double state_dropout = 0.2;

  /// N1.6 puts a learned token where the state is left out, N1.7 zeros.
  bool has_mask_token() const { return version == 16 && state_dropout > 0; }
  /// Throws ConfigError for sizes that do not fit each other.
  void check() const;
};

/// What the reference's autocast does with `dtype`: fp32 is fp32 everywhere; bf16 rounds for
/// products only, and N1.6 rounds the inputs too.
GrootHeadPrecision groot_head_precision(int64_t version, at::ScalarType dtype);

/// Unit of a parameter of the head by its name below "action_head." (nn/unit.h): of its block, or
/// the root, to which modulations, norms between the parts, encoders and decoder belong.
std::string groot_head_unit(std::string_view name);

/// Facts of a batch that the host knows, which save work and change nothing, and the pass's
/// dropout.
struct GrootHeadCall {
  bool one_embodiment = false;   // every id of the batch equals the first (nn::Categories)
  bool text_and_images = false;  // every sample has rows of both kinds
  GrootDropout dropout = {};
  /// With `fused.attention`: cross-attention runs over packed rows of either kind and not over all
  /// rows with masks, where the device has kernels for it.
  GrootReadRows read = {};
  /// Which places of the features [B * S] the self-attention over them lets see each other, where
  /// these are not all of a sample (layout.h); without cu_seqlens: all.
  nn::PackedSamples vl_samples = {};
};

/// Flow-matching inputs of a batch.
struct GrootFlowInputs {
  at::Tensor state;        // [B, L, state width], L * width = state_dim
  at::Tensor actions;      // [B, H, A]
  at::Tensor action_mask;  // [B, H, A], 1 where the loss counts
  at::Tensor noise;        // [B, H, A]
  at::Tensor beta;         // [B] draw of Beta(1.5, 1): time = (1 - beta) * noise_s
  at::Tensor embodiment;   // [B] int64, each one of the slots that are read
  at::Tensor left_out;     // [B] bool: samples without state; undefined: none
};

struct GrootFlow {
  at::Tensor time;         // [B]
  at::Tensor bucket;       // [B] int64, trunc(time * time_buckets)
  at::Tensor x_t;          // [B, H, A] (1 - time) * noise + time * actions
  at::Tensor target;       // [B, H, A] actions - noise
  at::Tensor pred;         // [B, H, A]
  at::Tensor action_loss;  // [B, H, A] (pred - target)^2 * mask
  at::Tensor loss;         // [] sum(action_loss) / (sum(mask) + 1e-6)
};

/// Real-time chunking: the new chunk begins where the previous one is still being executed.
struct GrootRtc {
  at::Tensor previous;         // [B, >= action_horizon, A] the previous chunk, normalised
  int64_t action_horizon = 0;  // rows of it that count
  int64_t overlap_steps = 0;   // its last rows, the first of the new chunk
  int64_t frozen_steps = 0;    // of these, taken over unchanged
  double ramp_rate = 0;        // the others move with 1 - exp(-rate r), r in (0, 1), over its end
};

/// Sines, then cosines of bucket * 10000^(-k / (width / 2)); [R] int64 -> [R, width] fp32. Source:
/// Isaac-GR00T SinusoidalPositionalEncoding, in its order of operations.
at::Tensor groot_action_time(const at::Tensor& bucket, int64_t width);

/// W3(swish(W2([W1 x, sincos(t)]))) per embodiment.
class GrootActionEncoder : public nn::Module {
 public:
  GrootActionEncoder(int64_t embodiments, int64_t action_dim, int64_t width,
                     const std::vector<int64_t>& slots = {});
  /// x_t [B, H, A], time [B or 1, width] -> [B, H, width].
  at::Tensor forward(const at::Tensor& x_t, const at::Tensor& time,
                     const nn::Categories& embodiment, at::ScalarType gemm) const;

 private:
  nn::CategoryLinear w1_, w2_, w3_;
};

/// Parameters carry the public names below "action_head.". Every pass reads device tensors only and
/// can be captured. Units: groot_vl_unit() and groot_dit_unit().
class GrootActionHead : public nn::Module {
 public:
  /// Shapes only (meta device). Throws ConfigError.
  GrootActionHead(const GrootHeadSizes& sizes, const GrootHeadPrecision& precision,
                  const nn::Fused& fused = {});

  /// features [B, S, backbone_width]; valid, image [B, S] bool: rows that are no padding, rows of
  /// pictures. Norm, self-attention of the features over all S rows (padding included, as the
  /// reference: the result depends on S), and the masks of both kinds of row. Throws ShapeError.
  GrootVlContext encode_context(const at::Tensor& features, const at::Tensor& valid,
                                const at::Tensor& image, const GrootHeadCall& call = {}) const;

  /// The samples whose state is left out, [B] bool, from u [B] uniform in [0, 1); undefined where
  /// the probability is 0. Training only; N1.6's reference does it in evaluation of the loss too,
  /// no version when it samples.
  at::Tensor left_out(const at::Tensor& u) const;

  /// state [B, L, width], x_t [B, H, A], bucket [B] int64 (or [1] for all), embodiment [B] int64,
  /// left_out [B] bool or undefined -> velocity [B, H, A] in the stream dtype. Throws ShapeError.
  at::Tensor velocity(const GrootVlContext& context, const at::Tensor& state, const at::Tensor& x_t,
                      const at::Tensor& bucket, const at::Tensor& embodiment,
                      const at::Tensor& left_out = {}, const GrootHeadCall& call = {}) const;

  /// Loss of a batch; noise and time are given, never drawn here.
  GrootFlow flow(const GrootVlContext& context, const GrootFlowInputs& inputs,
                 const GrootHeadCall& call = {}) const;

  /// `inference_steps` Euler steps from `noise` [B, H, A]; returns [B, H, A]. With `rtc` the first
  /// rows come from the previous chunk. What the steps share (keys and values of the context, the
  /// state token, modulations) is computed once. Throws ConfigError for steps that do not fit.
  at::Tensor integrate(const GrootVlContext& context, const at::Tensor& state,
                       const at::Tensor& embodiment, const at::Tensor& noise,
                       const GrootHeadCall& call = {}, const GrootRtc* rtc = nullptr) const;

  const GrootHeadSizes& sizes() const { return sizes_; }
  const GrootHeadPrecision& precision() const { return precision_; }
  /// Dropout sites of a pass: those of the vl blocks, then those of the DiT, four per block. Sites
  /// 1 and 3 of a block are never asked for without final dropout.
  int64_t dropout_sites() const { return kGrootSitesPerBlock * (sizes_.vl_depth + sizes_.depth); }
  /// Probability of a site: that of the vl blocks or that of the DiT.
  double dropout_of(int64_t site) const {
    return site < kGrootSitesPerBlock * sizes_.vl_depth ? sizes_.vl_dropout : sizes_.dropout;
  }
  /// Names of the units in the order in which they run.
  std::vector<std::string> units() const;
  /// Asks for the FP8 sites of the blocks, "vl.<b>.*" and "dit.<b>.*".
  void use_fp8(nn::Fp8Layers& layers);

  /// Called with named activations when set; for locating divergences.
  std::function<void(std::string_view, const at::Tensor&)> tap;
  /// Watches the units; null: nobody does.
  nn::UnitHooks* hooks = nullptr;
  /// Whether a unit is recomputed in the backward pass; empty: none is.
  std::function<bool(std::string_view unit)> recomputed;

 private:
  /// What depends on the time only, one row per sample or one for all.
  struct TimeTerms {
    at::Tensor sincos;  // [R, width]
    std::vector<GrootModulation> modulations;
  };
  GrootRun run(const GrootHeadCall& call) const;
  nn::Categories categories(const at::Tensor& embodiment, const GrootHeadCall& call) const;
  TimeTerms time_terms(const at::Tensor& bucket, const GrootRun& run) const;
  /// [B, 1, width].
  at::Tensor state_token(const at::Tensor& state, const nn::Categories& embodiment,
                         const at::Tensor& left_out, const GrootRun& run) const;
  at::Tensor velocity_of(const GrootVlContext& context, const at::Tensor& state_token,
                         const at::Tensor& x_t, const TimeTerms& time,
                         const nn::Categories& embodiment, const GrootRun& run,
                         GrootCrossCache* cache) const;
  void check_actions(const at::Tensor& actions, const char* what) const;

  GrootHeadSizes sizes_;
  GrootHeadPrecision precision_;
  nn::Fused fused_;
  GrootDit dit_;
  nn::CategoryMlp state_encoder_;
  GrootActionEncoder action_encoder_;
  nn::CategoryMlp action_decoder_;
  std::unique_ptr<nn::LayerNorm> vlln_;
  std::unique_ptr<GrootVlAttention> vl_self_attention_;
  at::Tensor position_;    // [position_rows, width], undefined without
  at::Tensor mask_token_;  // [1, 1, width], undefined without
};

}  // namespace longship::models
