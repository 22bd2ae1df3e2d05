// The forward pass of Pi05Model. Shapes: B samples, N packed prefix tokens, L longest prefix, T
// suffix tokens, A horizon, D padded action dims, W width of the stream at hand, H query heads, G
// key-value heads, E head dimension.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "models/pi05/model.h"
#include "nn/attention.h"
#include "nn/functions.h"
#include "nn/rope.h"
#include "nn/tensor_math.h"

namespace longship::models {
namespace {

constexpr int64_t kPadToken = 0;  // its embedding row never gets a gradient, as in the references

/// [..., H + 2G, E] -> rotated queries and keys, and values.
struct Heads {
  at::Tensor q, k, v;
};

Heads split_heads(const at::Tensor& qkv, int64_t num_kv_heads, const nn::RopeTable& table) {
  const int64_t heads = qkv.size(-2) - 2 * num_kv_heads;
  const auto parts = qkv.split_with_sizes({heads + num_kv_heads, num_kv_heads}, -2);
  const at::Tensor rotated = nn::apply_rope(parts[0], table);
  if (heads == 0) return {{}, rotated, parts[1]};
  const auto qk = rotated.split_with_sizes({heads, num_kv_heads}, -2);
  return {qk[0], qk[1], parts[1]};
}

}  // namespace

at::Tensor time_embedding(const at::Tensor& time, int64_t width, double min_period,
                          double max_period) {
  const at::TensorOptions wide = time.options().dtype(at::kDouble);
  const at::Tensor fraction = at::linspace(0.0, 1.0, width / 2, wide);
  const at::Tensor period = min_period * at::pow(at::Scalar(max_period / min_period), fraction);
  const at::Tensor phase = time.to(at::kDouble).unsqueeze(-1) * (2 * std::numbers::pi / period);
  return at::cat({at::sin(phase), at::cos(phase)}, -1).to(at::kFloat);
}

at::Tensor Pi05Model::embed_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const {
  std::vector<at::Tensor> parts;
  if (batch.images.size(0) > 0) {
    const at::Tensor patches = vision_.embed(batch.images, precision_.vision);
    record("act.vision.embeddings", patches);
    const at::Tensor features = vision_.encode(patches, precision_.vision);
    record("act.vision.last", features);
    const at::Tensor projected = projector_.forward(features.to(precision_.vision.gemm));
    record("act.vision.projected", projected);
    parts.push_back(projected.flatten(0, 1).to(precision_.stream));  // not scaled
  }
  if (batch.token_ids.size(0) > 0) {
    const at::Tensor text = embedding_.is_meta()
                                ? nn::select_rows(embedding_, batch.token_ids)
                                : at::embedding(embedding_, batch.token_ids, kPadToken);
    parts.push_back(text.to(precision_.stream) * std::sqrt(static_cast<double>(sizes_.width)));
  }
  return nn::select_rows(at::cat(parts), layout.gather);
}

PrefixCache Pi05Model::encode_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const {
  PrefixCache cache;
  const int64_t batch_size = layout.batch_size, length = layout.max_length;
  const int64_t groups = sizes_.num_kv_heads, head_dim = sizes_.head_dim;
  if (layout.num_tokens == 0) {  // no picture and no text in the whole batch
    const at::Tensor none = at::zeros({batch_size, 0, groups, head_dim},
                                      batch.token_ids.options().dtype(precision_.stream));
    cache.keys.assign(prefix_layers_.size(), none);
    cache.values.assign(prefix_layers_.size(), none);
    return cache;
  }
  at::Tensor h = embed_prefix(batch, layout);  // [N, W]
  const nn::RopeTable table = nn::rope_table(at::arange(length, batch.token_ids.options()),
                                             head_dim, sizes_.rope_theta, precision_.rope);
  const at::Tensor mask =
      layout.key_mask.defined() ? layout.key_mask.to(precision_.stream) : layout.key_mask;
  for (size_t l = 0; l < prefix_layers_.size(); ++l) {
    const GemmaLayer& layer = *prefix_layers_[l];
    const bool last = l + 1 == prefix_layers_.size();
    if (tap) record(fmt::format("act.stream0.layer{}.in", l), h);
    const at::Tensor normed = layer.input_layernorm.forward(h);
    at::Tensor qkv = last ? layer.self_attn.kv(normed) : layer.self_attn.qkv(normed);
    if (!layout.dense) qkv = nn::pad_rows(qkv, layout.pad_index, layout.unpad_index);
    const Heads heads =
        split_heads(qkv.view({batch_size, length, qkv.size(-2), head_dim}), groups, table);
    cache.keys.push_back(heads.k);
    cache.values.push_back(heads.v);
    if (last) break;
    at::Tensor mixed = nn::attention(heads.q, heads.k, heads.v, mask).flatten(0, 1);
    if (!layout.dense) {
      mixed = nn::unpad_rows(mixed, layout.pad_index, layout.unpad_index, layout.unused);
    }
    if (tap) record(fmt::format("act.stream0.layer{}.attn_heads", l), mixed);
    h = add_branch(h, layer.self_attn.o_proj.forward(mixed));
    h = add_branch(h, layer.mlp.forward(layer.post_attention_layernorm.forward(h)));
  }
  return cache;
}

std::vector<Modulation> Pi05Model::modulations(const at::Tensor& cond) const {
  std::vector<Modulation> out(2 * expert_layers_.size() + 1);
  if (!cond.defined()) return out;
  std::vector<at::Tensor> weights, biases;
  const auto add = [&](const GemmaNorm& norm) {
    weights.push_back(norm.dense->weight);
    biases.push_back(norm.dense->bias);
  };
  for (const auto& layer : expert_layers_) {
    add(layer->input_layernorm);
    add(layer->post_attention_layernorm);
  }
  add(expert_norm_);
  const at::Tensor all = nn::linear(cond.to(precision_.heads), at::cat(weights), at::cat(biases));
  const auto parts = all.split(sizes_.expert_width, -1);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = {parts[3 * i], parts[3 * i + 1], parts[3 * i + 2]};
  }
  return out;
}

at::Tensor Pi05Model::embed_suffix(const at::Tensor& state, const at::Tensor& x_t,
                                   const at::Tensor& time, at::Tensor* cond) const {
  const at::Tensor sincos =
      time_embedding(time, sizes_.expert_width, config_.min_period, config_.max_period)
          .to(precision_.heads);
  record("act.time_sincos", sincos);
  const at::Tensor actions = action_in_.forward(x_t.to(precision_.heads));
  if (time_in_) {
    *cond = at::silu(time_out_->forward(at::silu(time_in_->forward(sincos))));
    record("act.cond", *cond);
    return actions.to(precision_.stream);
  }
  const at::Tensor joined =
      at::cat({actions, sincos.unsqueeze(1).expand_as(actions)}, -1);  // [B, A, 2W]
  record("act.action_time_concat", joined);
  const at::Tensor tokens = action_time_out_->forward(at::silu(action_time_in_->forward(joined)));
  const at::Tensor state_token = state_proj_->forward(state.to(precision_.heads));
  record("act.state_token", state_token);
  return at::cat({state_token.unsqueeze(1), tokens}, 1).to(precision_.stream);
}

at::Tensor Pi05Model::suffix_mask(const PrefixLayout& layout, int64_t suffix_length) const {
  const bool has_state = !config_.is_pi05();
  if (!layout.key_mask.defined() && !has_state) return {};
  const at::TensorOptions options = layout.lengths.options().dtype(at::kFloat);
  const at::Tensor prefix = layout.key_mask.defined()
                                ? layout.key_mask
                                : at::zeros({layout.batch_size, 1, 1, layout.max_length}, options);
  const int64_t rows = has_state ? suffix_length : 1;
  at::Tensor suffix = at::zeros({layout.batch_size, 1, rows, suffix_length}, options);
  // The state token is a block of its own: it does not see the actions.
  if (has_state) suffix.narrow(2, 0, 1).narrow(3, 1, suffix_length - 1).fill_(nn::kMasked);
  return at::cat({prefix.expand({-1, -1, rows, -1}), suffix}, -1).to(precision_.stream);
}

at::Tensor Pi05Model::velocity(const PrefixCache& cache, const PrefixLayout& layout,
                               const at::Tensor& state, const at::Tensor& x_t,
                               const at::Tensor& time) const {
  at::Tensor cond;
  at::Tensor h = embed_suffix(state, x_t, time, &cond);  // [B, T, W]
  const std::vector<Modulation> mods = modulations(cond);
  const int64_t length = h.size(1);
  const at::Tensor positions =
      layout.lengths.unsqueeze(1) + at::arange(length, layout.lengths.options());
  const nn::RopeTable table =
      nn::rope_table(positions, sizes_.head_dim, sizes_.rope_theta, precision_.rope);
  const at::Tensor mask = suffix_mask(layout, length);
  for (size_t l = 0; l < expert_layers_.size(); ++l) {
    const GemmaLayer& layer = *expert_layers_[l];
    const Modulation& attn_mod = mods[2 * l];
    const Modulation& mlp_mod = mods[2 * l + 1];
    if (tap) record(fmt::format("act.stream1.layer{}.in", l), h);
    const at::Tensor normed = layer.input_layernorm.forward(h, attn_mod);
    if (tap) record(fmt::format("act.stream1.layer{}.norm1", l), normed);
    const Heads heads = split_heads(layer.self_attn.qkv(normed), sizes_.num_kv_heads, table);
    const at::Tensor mixed = nn::attention(heads.q, at::cat({cache.keys[l], heads.k}, 1),
                                           at::cat({cache.values[l], heads.v}, 1), mask);
    if (tap) record(fmt::format("act.stream1.layer{}.attn_heads", l), mixed);
    h = add_branch(h, layer.self_attn.o_proj.forward(mixed), attn_mod.gate);
    const at::Tensor normed2 = layer.post_attention_layernorm.forward(h, mlp_mod);
    h = add_branch(h, layer.mlp.forward(normed2), mlp_mod.gate);
  }
  const at::Tensor y = expert_norm_.forward(h, mods.back());
  record("act.stream1.final_norm", y);
  const int64_t horizon = x_t.size(1);
  const at::Tensor tail = y.narrow(1, length - horizon, horizon).to(precision_.heads);
  const at::Tensor v = action_out_.forward(tail);
  return v.scalar_type() == at::kDouble ? v : v.to(at::kFloat);
}

Pi05Flow Pi05Model::flow(const Pi05Batch& batch, const at::Tensor& noise,
                         const at::Tensor& time) const {
  LS_CHECK(batch.actions.dim() == 3 && batch.actions.size(2) == sizes_.max_action_dim, ShapeError,
           "pi05: actions must be [B, A, {}] (max_action_dim), got last dimension {}",
           sizes_.max_action_dim, batch.actions.size(-1));
  Pi05Flow out;
  const at::Tensor t = time.view({-1, 1, 1});
  out.x_t = t * noise + (1 - t) * batch.actions;
  out.u_t = noise - batch.actions;
  record("x_t", out.x_t);
  record("u_t", out.u_t);
  const PrefixLayout where = layout(batch);
  out.v_t = velocity(encode_prefix(batch, where), where, batch.state, out.x_t, time);
  const at::Tensor difference = out.v_t - out.u_t;
  out.elem = difference * difference;
  return out;
}

}  // namespace longship::models
