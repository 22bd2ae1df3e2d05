#include "nn/qwen3.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include "base/error.h"
#include "nn/functions.h"
#include "nn/mrope.h"
#include "nn/row_update.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/head_norm_rope.h"

namespace longship::nn {
namespace {

/// x [N, heads * E] -> each head normalised and rotated, [N, heads, E] in the dtype of x. Between
/// the two the dtype is the wider one of x and the weight.
at::Tensor turned_heads(const at::Tensor& x, int64_t heads, const ScaledRmsNorm& norm,
                        const RopeTable& rope) {
  const at::Tensor normed = scaled_rms_norm(x.unflatten(-1, {heads, -1}), norm.weight, norm.eps());
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

std::tuple<at::Tensor, at::Tensor, at::Tensor> Qwen3Attention::heads(const at::Tensor& x,
                                                                     const RopeTable& rope,
                                                                     const Fused& fused) const {
  std::vector<at::Tensor> parts;
  at::Tensor all;
  if (fp8_qkv) {
    all = fp8_qkv->forward(x, {q_proj.weight, k_proj.weight, v_proj.weight});
  } else if (fused.stacked) {
    all = stacked_linear(x, {q_proj.weight, k_proj.weight, v_proj.weight});
  } else {
    parts = {q_proj.forward(x), k_proj.forward(x), v_proj.forward(x)};
  }
  if (fused.rope) {
    if (!all.defined()) all = at::cat(parts, -1);
    return ops::head_norm_rope(all, q_norm.weight, k_norm.weight, rope.cos.squeeze(1),
                               rope.sin.squeeze(1), num_heads_, num_kv_heads_, q_norm.eps());
  }
  if (parts.empty()) {
    const int64_t kv = num_kv_heads_ * head_dim_;
    parts = all.split_with_sizes({num_heads_ * head_dim_, kv, kv}, -1);
  }
  return {turned_heads(parts[0], num_heads_, q_norm, rope),
          turned_heads(parts[1], num_kv_heads_, k_norm, rope),
          parts[2].unflatten(-1, {num_kv_heads_, head_dim_})};
}

at::Tensor Qwen3Attention::forward(const at::Tensor& x, const PackedSamples& samples,
                                   const RopeTable& rope, const Fused& fused) const {
  const auto [q, k, v] = heads(x, rope, fused);
  if (q.is_meta()) {  // shapes only: LibTorch has no meta kernels for the mask
    return o_proj.forward(at::empty({x.size(0), num_heads_ * head_dim_}, x.options()));
  }
  const at::Tensor mixed =
      packed_self_attention(q, k, v, samples, /*causal=*/true, fused.attention);
  return product(o_proj, mixed, fp8_out);
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
  const at::Tensor branch =
      self_attn.forward(input_layernorm.forward(h, fused.norms), samples, rope, fused);
  const Normed middle = post_attention_layernorm.add(h, branch, fused.norms);
  return middle.h + mlp.forward(middle.y, fused);
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

void Qwen3Text::use_fp8(Fp8Layers& layers, const std::string& prefix) {
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto name = [&](const char* part) { return fmt::format("{}.{}.{}", prefix, l, part); };
    Qwen3Attention& attention = layers_[l]->self_attn;
    SwiGluMlp& mlp = layers_[l]->mlp;
    attention.fp8_qkv = layers.linear(
        name("qkv"), {attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight});
    attention.fp8_out = layers.linear(name("out"), {attention.o_proj.weight});
    mlp.fp8_gate_up = layers.linear(name("gate_up"), {mlp.gate_proj.weight, mlp.up_proj.weight});
    mlp.fp8_down = layers.linear(name("down"), {mlp.down_proj.weight});
  }
}

at::Tensor Qwen3Text::final_norm(const at::Tensor& hidden) const {
  return norm_.forward(hidden, fused.norms);
}

}  // namespace longship::nn
