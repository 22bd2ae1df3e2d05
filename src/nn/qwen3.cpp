#include "nn/qwen3.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "base/error.h"
#include "nn/functions.h"
#include "nn/mrope.h"
#include "nn/row_update.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

/// x [N, heads * E] -> each head normalised and rotated, [N, heads, E] in the dtype of x. Between
/// the two the dtype is that of the norm's result.
at::Tensor turned_heads(const at::Tensor& x, int64_t heads, const ScaledRmsNorm& norm,
                        const RopeTable& rope) {
  const at::Tensor normed = norm.forward(x.unflatten(-1, {heads, -1}));
  const at::ScalarType dtype = normed.scalar_type();
  return rotate_half(normed, rope.cos.to(dtype), rope.sin.to(dtype)).to(x.scalar_type());
}

}  // namespace

Qwen3Attention::Qwen3Attention(const Qwen3Sizes& s)
    : q_proj(s.width, s.num_heads * s.head_dim, false),
      k_proj(s.width, s.num_kv_heads * s.head_dim, false),
      v_proj(s.width, s.num_kv_heads * s.head_dim, false),
      o_proj(s.num_heads * s.head_dim, s.width, false),
      q_norm(s.head_dim, s.eps),
      k_norm(s.head_dim, s.eps),
      num_heads_(s.num_heads),
      num_kv_heads_(s.num_kv_heads),
      head_dim_(s.head_dim) {
  register_child("q_proj", q_proj);
  register_child("k_proj", k_proj);
  register_child("v_proj", v_proj);
  register_child("o_proj", o_proj);
  register_child("q_norm", q_norm);
  register_child("k_norm", k_norm);
  register_stack({&q_proj.weight, &k_proj.weight, &v_proj.weight});
}

at::Tensor Qwen3Attention::forward(const at::Tensor& x, const PackedSamples& samples,
                                   const RopeTable& rope, const Fused& fused) const {
  std::vector<at::Tensor> qkv;
  if (fused.stacked) {
    const int64_t kv = num_kv_heads_ * head_dim_;
    qkv = stacked_linear(x, {q_proj.weight, k_proj.weight, v_proj.weight})
              .split_with_sizes({num_heads_ * head_dim_, kv, kv}, -1);
  } else {
    qkv = {q_proj.forward(x), k_proj.forward(x), v_proj.forward(x)};
  }
  const at::Tensor q = turned_heads(qkv[0], num_heads_, q_norm, rope);
  const at::Tensor k = turned_heads(qkv[1], num_kv_heads_, k_norm, rope);
  const at::Tensor v = qkv[2].unflatten(-1, {num_kv_heads_, head_dim_});
  if (q.is_meta()) {  // shapes only: LibTorch has no meta kernels for the mask
    return o_proj.forward(at::empty({x.size(0), num_heads_ * head_dim_}, x.options()));
  }
  return o_proj.forward(packed_self_attention(q, k, v, samples, /*causal=*/true));
}

Qwen3Layer::Qwen3Layer(const Qwen3Sizes& s)
    : input_layernorm(s.width, s.eps),
      self_attn(s),
      post_attention_layernorm(s.width, s.eps),
      mlp(s.width, s.mlp_dim) {
  register_child("input_layernorm", input_layernorm);
  register_child("self_attn", self_attn);
  register_child("post_attention_layernorm", post_attention_layernorm);
  register_child("mlp", mlp);
}

at::Tensor Qwen3Layer::forward(const at::Tensor& h, const PackedSamples& samples,
                               const RopeTable& rope, const Fused& fused) const {
  const at::Tensor x = input_layernorm.forward(h).to(h.scalar_type());
  return feed_forward(h + self_attn.forward(x, samples, rope, fused), fused);
}

at::Tensor Qwen3Layer::feed_forward(const at::Tensor& h, const Fused& fused) const {
  return h + mlp.forward(post_attention_layernorm.forward(h).to(h.scalar_type()), fused);
}

Qwen3Text::Qwen3Text(const Qwen3Sizes& s) : sizes_(s), norm_(s.width, s.eps) {
  LS_CHECK(s.num_kv_heads > 0 && s.num_heads % s.num_kv_heads == 0, ConfigError,
           "Qwen3: {} query heads are no multiple of {} key heads", s.num_heads, s.num_kv_heads);
  LS_CHECK(s.head_dim % 2 == 0, ConfigError, "Qwen3: head dimension {} is not even", s.head_dim);
  const auto& [time, row, column] = s.mrope_sections;
  LS_CHECK((time == 0 && row == 0 && column == 0) || time + row + column == s.head_dim / 2,
           ConfigError,
           "Qwen3: rotary sections {} + {} + {} do not make up half of head dimension {}", time,
           row, column, s.head_dim);
  register_parameter("embed_tokens.weight", embedding_, {s.vocab, s.width});
  for (int64_t l = 0; l < s.depth; ++l) {
    layers_.push_back(std::make_unique<Qwen3Layer>(s));
    register_child(fmt::format("layers.{}", l), *layers_.back());
  }
  register_child("norm", norm_);
}

at::Tensor Qwen3Text::embed(const at::Tensor& token_ids) const {
  if (embedding_.is_meta()) return select_rows(embedding_, token_ids);
  return at::embedding(embedding_, token_ids);
}

RopeTable Qwen3Text::rope(const at::Tensor& positions, at::ScalarType dtype) const {
  return mrope_table(positions, sizes_.head_dim, sizes_.theta, sizes_.mrope_sections, dtype);
}

at::Tensor Qwen3Text::layers(const at::Tensor& hidden, const PackedSamples& samples,
                             const RopeTable& rope, int64_t first, int64_t last,
                             const Qwen3Deepstack& deepstack) const {
  LS_CHECK(0 <= first && first <= last && last <= sizes_.depth, ShapeError,
           "Qwen3: layers {} to {} of a model of {}", first, last, sizes_.depth);
  LS_CHECK(
      hidden.dim() == 2 && hidden.size(1) == sizes_.width && rope.cos.size(0) == hidden.size(0),
      ShapeError, "Qwen3: a stream [N, {}] with N rotary angles, got [{}, {}] with {}",
      sizes_.width, hidden.size(0), hidden.size(-1), rope.cos.size(0));
  at::Tensor h = hidden;
  for (int64_t l = first; l < last; ++l) {
    if (tap) tap(fmt::format("text_layer{}.in", l), h);
    const Qwen3Layer* layer = layers_[static_cast<size_t>(l)].get();
    const auto unit = [layer, samples, rope, used = fused](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{layer->forward(in[0], samples, rope, used)};
    };
    h = run ? run(l, unit, {h})[0] : unit({h})[0];
    if (tap) tap(fmt::format("text_layer{}.out", l), h);
    if (static_cast<size_t>(l) < deepstack.features.size()) {
      h = add_rows(h, deepstack.image_rows, deepstack.features[static_cast<size_t>(l)]);
    }
  }
  return h;
}

at::Tensor Qwen3Text::final_norm(const at::Tensor& hidden) const {
  return norm_.forward(hidden).to(hidden.scalar_type());
}

at::Tensor Qwen3Text::pad_row(int64_t token_id) const {
  LS_CHECK(0 <= token_id && token_id < sizes_.vocab, ShapeError,
           "Qwen3: padding token {} of a vocabulary of {}", token_id, sizes_.vocab);
  at::Tensor h = embedding_.narrow(0, token_id, 1);
  for (const auto& layer : layers_) h = layer->feed_forward(h, fused);
  return h.squeeze(0);
}

}  // namespace longship::nn
