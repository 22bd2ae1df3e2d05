#pragma once
// The Qwen3 language model without its output head, over packed samples; parameter names as in
// transformers' Qwen3Model and Qwen3VLTextModel.
//
// The stream has the model's dtype. Weights stored in another one (trainable fp32 beside a frozen
// bf16 rest) are cast where they are multiplied; of norms only the product is, as autocast does.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/layer_runner.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/packed_samples.h"
#include "nn/rope.h"
#include "nn/scaled_norm.h"
#include "nn/swiglu.h"

namespace longship::nn {

struct Qwen3Sizes {
  int64_t vocab = 0;
  int64_t width = 0;
  int64_t mlp_dim = 0;
  int64_t depth = 0;  // layers that exist, the model may keep fewer than its checkpoint
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double eps = 1e-6;
  double theta = 1e6;
  std::array<int64_t, 3> mrope_sections{};  // frequencies per axis, interleaved; zeros: plain rope
};

class Qwen3Attention : public Module {
 public:
  explicit Qwen3Attention(const Qwen3Sizes& sizes);
  /// x [N, width], normalised -> the branch [N, width]; zero at padding rows. Causal inside a
  /// sample. `rope` [N, 1, head_dim / 2] in the dtype of x. fused.rope: norm of the heads and
  /// rotation in one pass, rounded once.
  at::Tensor forward(const at::Tensor& x, const PackedSamples& samples, const RopeTable& rope,
                     const Fused& fused) const;

  Linear q_proj, k_proj, v_proj, o_proj;
  ScaledRmsNorm q_norm, k_norm;        // of each head, before the rotation
  const Fp8Linear* fp8_qkv = nullptr;  // null: the model's dtype
  const Fp8Linear* fp8_out = nullptr;

 private:
  /// q, k, v of the attention: [N, heads, head_dim], in the dtype of x.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> heads(const at::Tensor& x, const RopeTable& rope,
                                                       const Fused& fused) const;

  int64_t num_heads_, num_kv_heads_, head_dim_;
};

class Qwen3Layer : public Module {
 public:
  explicit Qwen3Layer(const Qwen3Sizes& sizes);
  /// The stream [N, width] behind the layer. Reads this layer's parameters only.
  at::Tensor forward(const at::Tensor& h, const PackedSamples& samples, const RopeTable& rope,
                     const Fused& fused) const;

  ScaledRmsNorm input_layernorm;
  Qwen3Attention self_attn;
  ScaledRmsNorm post_attention_layernorm;
  SwiGluMlp mlp;
};

/// Features of pictures that are added to the stream on its way (Qwen3-VL): features[j] [M, width]
/// behind layer j, to the rows `image_rows` [M] int64.
struct Qwen3Deepstack {
  std::vector<at::Tensor> features;
  at::Tensor image_rows;
};

class Qwen3Text : public Module {
 public:
  /// Throws ConfigError for sizes that do not fit each other.
  explicit Qwen3Text(const Qwen3Sizes& sizes);

  /// token_ids [N] int64 -> rows of the embedding table [N, width], in its dtype.
  at::Tensor embed(const at::Tensor& token_ids) const;
  /// cos and sin for layers(). positions [1, N], or with sections [3, N] (nn/mrope.h); `dtype`: of
  /// the stream. Throws ShapeError.
  RopeTable rope(const at::Tensor& positions, at::ScalarType dtype) const;
  /// Runs layers [first, last) on the packed stream [N, width]; j of `deepstack` counts from layer
  /// 0 whatever `first` is. A padding row (segment id 0) goes through norms and MLPs alone, as in
  /// the references, which attend over valid tokens only. Taps "text_layer<l>.in" and
  /// "text_layer<l>.out" (before the addition). Throws ShapeError.
  at::Tensor layers(const at::Tensor& hidden, const PackedSamples& samples, const RopeTable& rope,
                    int64_t first, int64_t last, const Qwen3Deepstack& deepstack = {}) const;
  at::Tensor final_norm(const at::Tensor& hidden) const;

  const Qwen3Sizes& sizes() const { return sizes_; }

  /// Asks for FP8 sites "<prefix>.<layer>.qkv", ".out", ".gate_up" and ".down".
  void use_fp8(Fp8Layers& layers, const std::string& prefix);

  // Set by the model.
  Fused fused;      // reads `norms`, `activations`, `rope`, `stacked`, `attention`
  LayerRunner run;  // one call per layer, inputs and outputs {stream}
  Tap tap;

 private:
  Qwen3Sizes sizes_;
  at::Tensor embedding_;  // [vocab, width]
  std::vector<std::unique_ptr<Qwen3Layer>> layers_;
  ScaledRmsNorm norm_;
};

}  // namespace longship::nn
