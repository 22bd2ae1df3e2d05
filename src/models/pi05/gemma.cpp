#include "models/pi05/gemma.h"

#include <ATen/ops/cat.h>

#include "nn/stacked_linear.h"

namespace longship::models {

GemmaNorm::GemmaNorm(int64_t width, double eps, bool adaptive) : eps_(eps) {
  if (adaptive) {
    dense = std::make_unique<nn::Linear>(width, 3 * width, true);
    register_child("dense", *dense);
  } else {
    register_parameter("weight", weight, {width});
  }
}

at::Tensor GemmaNorm::forward(const at::Tensor& x, const Modulation& modulation, bool fused) const {
  if (!dense) return nn::rms_norm(x, weight, eps_, fused);
  return nn::ada_rms_norm(x, modulation.scale, modulation.shift, eps_, fused);
}

nn::Normed GemmaNorm::add(const at::Tensor& h, const at::Tensor& branch, const at::Tensor& gate,
                          const Modulation& modulation, bool fused) const {
  return nn::add_rms_norm(h, branch, gate, dense ? modulation.scale : weight,
                          dense ? modulation.shift : at::Tensor(), eps_, fused);
}

GemmaAttention::GemmaAttention(const GemmaLayerSizes& s)
    : q_proj(s.width, s.num_heads * s.head_dim, false),
      k_proj(s.width, s.num_kv_heads * s.head_dim, false),
      v_proj(s.width, s.num_kv_heads * s.head_dim, false),
      o_proj(s.num_heads * s.head_dim, s.width, false) {
  register_child("q_proj", q_proj);
  register_child("k_proj", k_proj);
  register_child("v_proj", v_proj);
  register_child("o_proj", o_proj);
  register_stack({&q_proj.weight, &k_proj.weight, &v_proj.weight});
}

at::Tensor GemmaAttention::project(const at::Tensor& mixed) const {
  if (fp8_out) return fp8_out->forward(mixed, {o_proj.weight});
  return nn::stacked_linear(mixed, {o_proj.weight});
}

at::Tensor GemmaAttention::qkv(const at::Tensor& x, const nn::Fused& fused) const {
  if (fp8_qkv) {
    return fp8_qkv->forward(x, {q_proj.weight, k_proj.weight, v_proj.weight});
  }
  if (!fused.stacked) return at::cat({q_proj.forward(x), k_proj.forward(x), v_proj.forward(x)}, -1);
  return nn::stacked_linear(x, {q_proj.weight, k_proj.weight, v_proj.weight});
}

at::Tensor GemmaAttention::kv(const at::Tensor& x, const nn::Fused& fused) const {
  if (!fused.stacked) return at::cat({k_proj.forward(x), v_proj.forward(x)}, -1);
  return nn::stacked_linear(x, {k_proj.weight, v_proj.weight});
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

}  // namespace longship::models
