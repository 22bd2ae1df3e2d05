#pragma once
// One Gemma layer, plain (prefix stream; Pi0's expert) or with adaptive norms (Pi0.5's expert).

#include <ATen/core/Tensor.h>

#include <memory>

#include "nn/fp8.h"
#include "nn/fused.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module.h"
#include "nn/norm.h"

namespace longship::models {

struct GemmaLayerSizes {
  int64_t width = 0;
  int64_t mlp_dim = 0;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 0;
  double eps = 1e-6;
};

/// Scale, shift and gate of one adaptive norm, [B, width] each; undefined for a plain norm.
struct Modulation {
  at::Tensor scale, shift, gate;
};

/// Plain: `weight` [width], the offset from one. Adaptive: `dense` of [3 width, width] with bias,
/// whose output chunks are scale, shift, gate; the product itself is computed for all norms at
/// once, see Pi05Model::modulations.
class GemmaNorm : public nn::Module {
 public:
  GemmaNorm(int64_t width, double eps, bool adaptive);
  /// Plain: x [..., width]. Adaptive: x [B, T, width].
  at::Tensor forward(const at::Tensor& x, const Modulation& modulation, bool fused) const;
  /// h + branch * gate (undefined: plain addition), and this norm of it.
  nn::Normed add(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate,
                 const Modulation& modulation, bool fused) const;

  at::Tensor weight;
  std::unique_ptr<nn::Linear> dense;

 private:
  double eps_;
};

class GemmaAttention : public nn::Module {
 public:
  explicit GemmaAttention(const GemmaLayerSizes& sizes);
  /// x [..., width] -> [..., (heads + 2 kv_heads) * head_dim]: query, key and value heads.
  at::Tensor qkv(const at::Tensor& x, const nn::Fused& fused) const;
  /// [..., 2 kv_heads * head_dim]: key and value heads only.
  at::Tensor kv(const at::Tensor& x, const nn::Fused& fused) const;

  /// o_proj.
  at::Tensor project(const at::Tensor& mixed) const;

  nn::Linear q_proj, k_proj, v_proj, o_proj;
  const nn::Fp8Linear* fp8_qkv = nullptr;  // null: the model's dtype
  const nn::Fp8Linear* fp8_out = nullptr;
};

class GemmaLayer : public nn::Module {
 public:
  GemmaLayer(const GemmaLayerSizes& sizes, bool adaptive);

  GemmaAttention self_attn;
  nn::GatedMlp mlp;
  GemmaNorm input_layernorm, post_attention_layernorm;
};

}  // namespace longship::models
