#include "models/pi05/gemma.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>

#include "nn/norm.h"
#include "nn/tensor_math.h"

namespace longship::models {

GemmaNorm::GemmaNorm(int64_t width, double eps, bool adaptive) : eps_(eps) {
  if (adaptive) {
    dense = std::make_unique<nn::Linear>(width, 3 * width, true);
    register_child("dense", *dense);
  } else {
    register_parameter("weight", weight, {width});
  }
}

at::Tensor GemmaNorm::forward(const at::Tensor& x, const Modulation& modulation) const {
  if (!dense) return nn::rms_norm(x, weight, eps_);
  return nn::ada_rms_norm(x, modulation.scale, modulation.shift, eps_);
}

GemmaAttention::GemmaAttention(const GemmaLayerSizes& s)
    : q_proj(s.width, s.num_heads * s.head_dim, false),
      k_proj(s.width, s.num_kv_heads * s.head_dim, false),
      v_proj(s.width, s.num_kv_heads * s.head_dim, false),
      o_proj(s.num_heads * s.head_dim, s.width, false),
      head_dim_(s.head_dim) {
  register_child("q_proj", q_proj);
  register_child("k_proj", k_proj);
  register_child("v_proj", v_proj);
  register_child("o_proj", o_proj);
}

at::Tensor GemmaAttention::qkv(const at::Tensor& x) const {
  return nn::linear(x, at::cat({q_proj.weight, k_proj.weight, v_proj.weight}))
      .unflatten(-1, {-1, head_dim_});
}

at::Tensor GemmaAttention::kv(const at::Tensor& x) const {
  return nn::linear(x, at::cat({k_proj.weight, v_proj.weight})).unflatten(-1, {-1, head_dim_});
}

GemmaLayer::GemmaLayer(const GemmaLayerSizes& s, bool adaptive)
    : self_attn(s),
      mlp(s.width, s.mlp_dim),
      input_layernorm(s.width, s.eps, adaptive),
      post_attention_layernorm(s.width, s.eps, adaptive) {
  register_child("self_attn", self_attn);
  register_child("mlp", mlp);
  register_child("input_layernorm", input_layernorm);
  register_child("post_attention_layernorm", post_attention_layernorm);
}

at::Tensor add_branch(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate) {
  if (!gate.defined()) return h + branch;
  return at::addcmul(h, branch, gate.unsqueeze(1).to(h.scalar_type()));
}

}  // namespace longship::models
