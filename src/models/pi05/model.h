#pragma once
// Pi0 and Pi0.5 on one device: SigLIP and projector, the prefix Gemma, the action expert, flow
// matching.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/common/lost_kernels.h"
#include "models/pi05/batch.h"
#include "models/pi05/config.h"
#include "models/pi05/gemma.h"
#include "models/pi05/layout.h"
#include "models/spec.h"
#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/norm.h"
#include "nn/rope.h"
#include "nn/siglip.h"
#include "nn/unit.h"

namespace longship::models {

/// Dtypes at work. With fp32 all are fp32. With bf16: openpi's preset keeps the heads, the time MLP
/// and every norm in fp32 and runs the whole vision tower behind the position sum in bf16;
/// LoongForge's keeps the vision stream and its weights in fp32 and casts to bf16 for products,
/// heads included (what its autocast does).
struct Pi05Precision {
  nn::SiglipPrecision vision;
  at::ScalarType stream = at::kFloat;  // both residual streams
  at::ScalarType heads =
      at::kFloat;  // action, state and time projections, and the modulation product
  at::ScalarType rope = at::kFloat;
};
Pi05Precision pi05_precision(const Pi05Config& config, at::ScalarType dtype);
/// Storage dtype of a parameter under the same presets.
at::ScalarType pi05_parameter_dtype(const Pi05Config& config, at::ScalarType dtype,
                                    std::string_view name);

/// Which of the kernels that `asked` names such a model cannot have.
std::vector<LostKernel> pi05_lost_kernels(const Pi05Config& config, const nn::Fused& asked,
                                          at::ScalarType dtype);

/// Rotated keys and values of the prefix per layer: packed rows [N, kv_heads, head_dim], or, for
/// the plain attention, padded [B, L, kv_heads, head_dim].
struct PrefixCache {
  std::vector<at::Tensor> keys, values;
};

/// Flow-matching terms, all [B, A, D] fp32.
struct Pi05Flow {
  at::Tensor x_t;   // time * noise + (1 - time) * actions
  at::Tensor u_t;   // noise - actions
  at::Tensor v_t;   // prediction
  at::Tensor elem;  // (v_t - u_t)^2
};

/// Parameters carry the names of the public checkpoint; the token embedding is stored once, as
/// lm_head.weight. The expert's unused lm_head is not a parameter.
class Pi05Model : public nn::Module {
 public:
  /// Shapes only (meta device). Sizes, precision, operators and recomputed units are fixed here.
  /// Throws ConfigError for a recompute pattern that matches no unit.
  Pi05Model(const Pi05Config& config, const BuildOptions& options);

  /// Gives every parameter uninitialised storage on `device`; without `memory` only the device.
  void allocate(at::Device device, bool memory = true);
  /// Fills every parameter from (seed, name); `sink` gets the fp32 values before rounding.
  void initialise(uint64_t seed, const PreciseSink& sink);

  /// Runs pictures and text through the prefix stream. The last layer stops at its keys and values:
  /// nothing reads its output.
  PrefixCache encode_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const;

  /// What depends on the flow-matching time only: the condition's modulations (Pi0.5) and the time
  /// embedding (Pi0). time [R]: one row per sample, or one for all.
  struct TimeTerms {
    at::Tensor sincos;                    // [R, W]
    std::vector<Modulation> modulations;  // one per adaptive norm in the order of use
  };
  TimeTerms time_terms(const at::Tensor& time) const;

  /// x_t [B, A, D] fp32, state [B, D] (Pi0 only) -> velocity [B, A, D] fp32.
  at::Tensor velocity(const PrefixCache& cache, const PrefixLayout& layout, const at::Tensor& state,
                      const at::Tensor& x_t, const TimeTerms& time) const;

  /// noise [B, A, D], time [B]: given, never drawn here.
  Pi05Flow flow(const Pi05Batch& batch, const at::Tensor& noise, const at::Tensor& time) const;

  /// Euler steps from `noise` [B, A, D] at time 1 to time 0; returns [B, A, D].
  at::Tensor integrate(const PrefixCache& cache, const PrefixLayout& layout,
                       const at::Tensor& state, const at::Tensor& noise) const;

  /// Completes batch.layout (host tensors) and, `to_buckets`, pads its text rows.
  void prepare(Pi05Batch& batch, bool to_buckets) const;
  /// The layout of a prepared batch; for others one is made, on the batch's device. Also makes the
  /// rotation table long enough, so call it outside a capture before the first capture.
  PrefixLayout layout(const Pi05Batch& batch) const;
  const nn::Fused& fused() const { return fused_; }

  /// FP8 layers, null without: "prefix.<layer>.qkv|out|mlp" and "vision.<layer>.qkv|out|fc1|fc2".
  nn::Fp8Layers* fp8() const { return fp8_.get(); }

  /// Velocity for noisy actions x_t; the loss is the caller's.
  at::Tensor predict(const Pi05Batch& batch, const at::Tensor& x_t, const at::Tensor& time) const;
  /// Row-sparse gradient of the token embedding, undefined tensors without the fused embedding.
  at::Tensor embedding_grad, embedding_flags;
  const Pi05Sizes& sizes() const { return sizes_; }
  const Pi05Config& config() const { return config_; }
  at::ScalarType dtype() const { return dtype_; }

  /// Called with named activations when set; for locating divergences. Prefix activations are
  /// packed rows.
  std::function<void(std::string_view, const at::Tensor&)> tap;

  /// Watches the units (plan.h says what belongs to which); null: nobody does.
  nn::UnitHooks* hooks = nullptr;
  /// Takes back the recomputation of units that no gradient passes (all before them frozen): their
  /// backward pass would compute for nothing.
  void keep_activations(const std::function<bool(std::string_view unit)>& forward_only);

  /// What the checkpoint held for the expert's unused lm_head, host; undefined: zeros are exported.
  at::Tensor expert_lm_head;

 private:
  /// Queries, keys and values of packed rows, rotated.
  struct Heads {
    at::Tensor q, k, v;  // [rows, heads, head_dim]; q undefined when only keys and values are asked
  };
  struct PrefixState {
    nn::Normed x;     // packed rows [N, W]
    at::Tensor k, v;  // as in PrefixCache
  };
  void register_all();
  void use_fp8(at::Device device);
  void name_units();
  void choose_recomputed(const std::vector<std::string>& patterns);
  void initialise_parameter(const std::string& name, at::Tensor& parameter, uint64_t seed) const;
  void record(std::string_view name, const at::Tensor& tensor) const {
    if (tap) tap(name, tensor);
  }
  at::Tensor embed_images(const Pi05Batch& batch) const;
  at::Tensor embed_text(const Pi05Batch& batch) const;
  at::Tensor embed_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const;
  Heads split_heads(const at::Tensor& qkv, const at::Tensor& positions, const nn::RopeTable& rows,
                    const at::Tensor& rows_valid) const;
  /// The table's rows at `positions`; undefined where the fused rotation gathers them itself.
  nn::RopeTable rope_rows(const at::Tensor& positions) const;
  void reserve_positions(const PrefixLayout& layout) const;
  LayoutRequest layout_request(const Pi05Batch& batch) const;
  /// One prefix layer: from the stream and its norm to those behind the layer.
  PrefixState prefix_layer(size_t l, const nn::Normed& x, const PrefixLayout& layout,
                           const nn::RopeTable& rows) const;
  at::Tensor attend_prefix(const Heads& heads, const PrefixLayout& layout, at::Tensor& cached_k,
                           at::Tensor& cached_v) const;
  at::Tensor attend_suffix(const Heads& own, const at::Tensor& k, const at::Tensor& v,
                           const PrefixLayout& layout, const at::Tensor& mask) const;
  nn::Normed expert_layer(size_t l, const nn::Normed& x, const std::vector<Modulation>& mods,
                          const at::Tensor& k, const at::Tensor& v, const PrefixLayout& layout,
                          const nn::RopeTable& rows, const at::Tensor& mask) const;
  /// One modulation per adaptive norm in the order of use, the final norm last.
  std::vector<Modulation> modulations(const at::Tensor& cond) const;
  /// Suffix tokens [B, A or A+1, W].
  at::Tensor embed_suffix(const at::Tensor& state, const at::Tensor& x_t,
                          const at::Tensor& sincos) const;
  at::Tensor suffix_mask(const PrefixLayout& layout, int64_t suffix_length) const;
  int64_t suffix_length() const { return config_.horizon() + (config_.is_pi05() ? 0 : 1); }

  Pi05Config config_;
  Pi05Sizes sizes_;
  at::ScalarType dtype_;
  Pi05Precision precision_;
  nn::Fused fused_;
  std::unique_ptr<nn::Fp8Layers> fp8_;
  int64_t token_bucket_ = 1;
  bool pad_text_ = false;
  std::vector<bool> recompute_vision_, recompute_prefix_, recompute_expert_;  // per layer
  std::vector<std::string> vision_units_, prefix_units_, expert_units_;       // names, per layer
  mutable nn::RopeTable rope_;  // [P, 1, head_dim / 2]
  nn::SiglipTower vision_;
  nn::Linear projector_;
  at::Tensor embedding_;  // [vocab, width]
  std::vector<std::unique_ptr<GemmaLayer>> prefix_layers_, expert_layers_;
  GemmaNorm prefix_norm_;  // dead: kept because the checkpoint has it
  GemmaNorm expert_norm_;
  nn::Linear action_in_, action_out_;
  std::unique_ptr<nn::Linear> time_in_, time_out_;                             // Pi0.5
  std::unique_ptr<nn::Linear> state_proj_, action_time_in_, action_time_out_;  // Pi0
};

/// sin and cos of 2 pi t / period in float64, periods geometric from min to max; [B] -> [B, width]
/// fp32.
at::Tensor time_embedding(const at::Tensor& time, int64_t width, double min_period,
                          double max_period);

}  // namespace longship::models
