// The forward pass of Pi05Model. Shapes: B samples, N packed prefix rows, L longest prefix, T
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
#include "nn/functions.h"
#include "nn/rope.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "nn/unit.h"
#include "ops/embedding_rows.h"

namespace longship::models {
namespace {

constexpr int64_t kPadToken = 0;  // its embedding row never gets a gradient, as in the references

}  // namespace

at::Tensor time_embedding(const at::Tensor& time, int64_t width, double min_period,
                          double max_period) {
  const at::TensorOptions wide = time.options().dtype(at::kDouble);
  const at::Tensor fraction = at::linspace(0.0, 1.0, width / 2, wide);
  const at::Tensor period = min_period * at::pow(at::Scalar(max_period / min_period), fraction);
  const at::Tensor phase = time.to(at::kDouble).unsqueeze(-1) * (2 * std::numbers::pi / period);
  return at::cat({at::sin(phase), at::cos(phase)}, -1).to(at::kFloat);
}

at::Tensor Pi05Model::embed_images(const Pi05Batch& batch) const {
  const at::Tensor patches = vision_.embed(batch.images, precision_.vision);
  record("act.vision.embeddings", patches);
  const at::Tensor features = vision_.encode(
      patches, precision_.vision, fused_,
      [this](int64_t layer, const nn::UnitFunction& unit, const std::vector<at::Tensor>& in) {
        const size_t l = static_cast<size_t>(layer);
        std::vector<at::Tensor> out =
            nn::run_unit(hooks, vision_units_[l], recompute_vision_[l], unit, in);
        if (tap) record(fmt::format("act.vision.block{}", l), out.front());
        return out;
      });
  record("act.vision.last", features);
  const at::Tensor projected = projector_.forward(features.to(precision_.vision.gemm));
  record("act.vision.projected", projected);
  return projected.flatten(0, 1).to(precision_.stream);  // not scaled
}

at::Tensor Pi05Model::embed_text(const Pi05Batch& batch) const {
  const double scale = std::sqrt(static_cast<double>(sizes_.width));
  if (embedding_.is_meta()) {
    return nn::select_rows(embedding_, batch.token_ids).to(precision_.stream) * scale;
  }
  if (fused_.embedding) {
    const auto given = [](const at::Tensor& t) {
      return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
    };
    return ops::embedding_rows(embedding_, batch.token_ids, scale, kPadToken, given(embedding_grad),
                               given(embedding_flags))
        .to(precision_.stream);
  }
  // Padding rows (id -1) read the pad token's row: their content reaches nothing.
  const at::Tensor ids = batch.token_ids.clamp_min(kPadToken);
  return at::embedding(embedding_, ids, kPadToken).to(precision_.stream) * scale;
}

at::Tensor Pi05Model::embed_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const {
  std::vector<at::Tensor> parts;
  if (batch.images.size(0) > 0) parts.push_back(embed_images(batch));
  if (batch.token_ids.size(0) > 0) parts.push_back(embed_text(batch));
  return nn::pad_rows(at::cat(parts), layout.gather, layout.gather_inverse);
}

Pi05Model::PrefixState Pi05Model::prefix_layer(size_t l, const nn::Normed& x,
                                               const PrefixLayout& layout,
                                               const nn::RopeTable& rows) const {
  const GemmaLayer& layer = *prefix_layers_[l];
  const bool last = l + 1 == prefix_layers_.size();
  const at::Tensor qkv = last ? layer.self_attn.kv(x.y, fused_) : layer.self_attn.qkv(x.y, fused_);
  const Heads heads = split_heads(qkv, layout.positions, rows, layout.rows_valid());
  PrefixState out;
  const at::Tensor mixed = attend_prefix(heads, layout, out.k, out.v);
  if (last) return out;
  const at::Tensor projected = layer.self_attn.project(mixed);
  if (tap) {
    record(fmt::format("act.stream0.layer{}.attn_heads", l), mixed);
    record(fmt::format("act.stream0.layer{}.attn_out", l), projected);
  }
  const nn::Normed middle =
      layer.post_attention_layernorm.add(x.h, projected, {}, {}, fused_.norms);
  const at::Tensor branch = layer.mlp.forward(middle.y, fused_);
  out.x = prefix_layers_[l + 1]->input_layernorm.add(middle.h, branch, {}, {}, fused_.norms);
  return out;
}

PrefixCache Pi05Model::encode_prefix(const Pi05Batch& batch, const PrefixLayout& layout) const {
  PrefixCache cache;
  if (layout.num_rows == 0) {  // no picture and no text in the whole batch
    const at::TensorOptions options = batch.token_ids.options().dtype(precision_.stream);
    const at::Tensor none =
        fused_.attention
            ? at::zeros({0, sizes_.num_kv_heads, sizes_.head_dim}, options)
            : at::zeros({layout.batch_size, 0, sizes_.num_kv_heads, sizes_.head_dim}, options);
    cache.keys.assign(prefix_layers_.size(), none);
    cache.values.assign(prefix_layers_.size(), none);
    return cache;
  }
  nn::Normed x;
  x.h = embed_prefix(batch, layout);  // [N, W]
  x.y = prefix_layers_.front()->input_layernorm.forward(x.h, {}, fused_.norms);
  const nn::RopeTable rows = rope_rows(layout.positions);
  for (size_t l = 0; l < prefix_layers_.size(); ++l) {
    if (tap) {
      record(fmt::format("act.stream0.layer{}.in", l), x.h);
      record(fmt::format("act.stream0.layer{}.norm1", l), x.y);
    }
    const auto unit = [this, l, layout, rows](const std::vector<at::Tensor>& in) {
      const PrefixState state = prefix_layer(l, {in[0], in[1]}, layout, rows);
      std::vector<at::Tensor> out{state.k, state.v};
      if (state.x.h.defined()) out.insert(out.end(), {state.x.h, state.x.y});
      return out;
    };
    const std::vector<at::Tensor> out =
        nn::run_unit(hooks, prefix_units_[l], recompute_prefix_[l], unit, {x.h, x.y});
    cache.keys.push_back(out[0]);
    cache.values.push_back(out[1]);
    if (out.size() > 2) x = {out[2], out[3]};
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
  const at::Tensor all = nn::stacked_linear(cond.to(precision_.heads), weights, biases);
  if (tap) {  // scale, shift and gate of the first norm
    record("act.stream1.layer0.norm1_modulation", all.narrow(-1, 0, 3 * sizes_.expert_width));
  }
  const auto parts = all.split(sizes_.expert_width, -1);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = {parts[3 * i], parts[3 * i + 1], parts[3 * i + 2]};
  }
  return out;
}

Pi05Model::TimeTerms Pi05Model::time_terms(const at::Tensor& time) const {
  TimeTerms out;
  out.sincos = time_embedding(time, sizes_.expert_width, config_.min_period, config_.max_period)
                   .to(precision_.heads);
  record("act.time_sincos", out.sincos);
  at::Tensor cond;
  if (time_in_) {
    cond = at::silu(time_out_->forward(at::silu(time_in_->forward(out.sincos))));
    record("act.cond", cond);
  }
  out.modulations = modulations(cond);
  return out;
}

at::Tensor Pi05Model::embed_suffix(const at::Tensor& state, const at::Tensor& x_t,
                                   const at::Tensor& sincos) const {
  const at::Tensor actions = action_in_.forward(x_t.to(precision_.heads));
  if (time_in_) return actions.to(precision_.stream);
  const at::Tensor joined =
      at::cat({actions, sincos.unsqueeze(1).expand_as(actions)}, -1);  // [B, A, 2W]
  record("act.action_time_concat", joined);
  const at::Tensor tokens = action_time_out_->forward(at::silu(action_time_in_->forward(joined)));
  const at::Tensor state_token = state_proj_->forward(state.to(precision_.heads));
  record("act.state_token", state_token);
  return at::cat({state_token.unsqueeze(1), tokens}, 1).to(precision_.stream);
}

nn::Normed Pi05Model::expert_layer(size_t l, const nn::Normed& x,
                                   const std::vector<Modulation>& mods, const at::Tensor& k,
                                   const at::Tensor& v, const PrefixLayout& layout,
                                   const nn::RopeTable& rows, const at::Tensor& mask) const {
  const GemmaLayer& layer = *expert_layers_[l];
  const Modulation& attn_mod = mods[2 * l];
  const Modulation& mlp_mod = mods[2 * l + 1];
  const at::Tensor qkv = layer.self_attn.qkv(x.y, fused_).flatten(0, 1);
  const Heads heads = split_heads(qkv, layout.suffix_positions, rows, {});
  const at::Tensor mixed = attend_suffix(heads, k, v, layout, mask);
  const at::Tensor projected = layer.self_attn.project(mixed);
  if (tap) {
    record(fmt::format("act.stream1.layer{}.attn_heads", l), mixed);
    record(fmt::format("act.stream1.layer{}.attn_out", l), projected);
  }
  const nn::Normed middle =
      layer.post_attention_layernorm.add(x.h, projected, attn_mod.gate, mlp_mod, fused_.norms);
  const at::Tensor branch = layer.mlp.forward(middle.y, fused_);
  const GemmaNorm& next =
      l + 1 < expert_layers_.size() ? expert_layers_[l + 1]->input_layernorm : expert_norm_;
  return next.add(middle.h, branch, mlp_mod.gate, mods[2 * l + 2], fused_.norms);
}

at::Tensor Pi05Model::velocity(const PrefixCache& cache, const PrefixLayout& layout,
                               const at::Tensor& state, const at::Tensor& x_t,
                               const TimeTerms& time) const {
  nn::Normed x;
  x.h = embed_suffix(state, x_t, time.sincos);  // [B, T, W]
  const std::vector<Modulation>& mods = time.modulations;
  x.y = expert_layers_.front()->input_layernorm.forward(x.h, mods.front(), fused_.norms);
  const int64_t length = x.h.size(1);
  const nn::RopeTable rows = rope_rows(layout.suffix_positions);
  const at::Tensor mask = suffix_mask(layout, length);
  for (size_t l = 0; l < expert_layers_.size(); ++l) {
    if (tap) record(fmt::format("act.stream1.layer{}.in", l), x.h);
    if (tap) record(fmt::format("act.stream1.layer{}.norm1", l), x.y);
    // Everything that needs a gradient is an input of the unit: the stream, the prefix keys and
    // values, and this layer's modulations (this norm's gate, the two that follow).
    std::vector<at::Tensor> inputs{x.h, x.y, cache.keys[l], cache.values[l]};
    for (size_t i = 2 * l; i < 2 * l + 3; ++i) {
      inputs.insert(inputs.end(), {mods[i].scale, mods[i].shift, mods[i].gate});
    }
    const auto unit = [this, l, layout, rows, mask](const std::vector<at::Tensor>& in) {
      std::vector<Modulation> own(2 * l + 3);
      for (size_t i = 0; i < 3; ++i) {
        own[2 * l + i] = {in[4 + 3 * i], in[5 + 3 * i], in[6 + 3 * i]};
      }
      const nn::Normed out = expert_layer(l, {in[0], in[1]}, own, in[2], in[3], layout, rows, mask);
      return std::vector<at::Tensor>{out.h, out.y};
    };
    const std::vector<at::Tensor> out =
        nn::run_unit(hooks, expert_units_[l], recompute_expert_[l], unit, inputs);
    x = {out[0], out[1]};
  }
  if (tap) record(fmt::format("act.stream1.layer{}.out", expert_layers_.size() - 1), x.h);
  record("act.stream1.final_norm", x.y);
  const int64_t horizon = x_t.size(1);
  const at::Tensor tail = x.y.narrow(1, length - horizon, horizon).to(precision_.heads);
  const at::Tensor v = action_out_.forward(tail);
  return v.scalar_type() == at::kDouble ? v : v.to(at::kFloat);
}

at::Tensor Pi05Model::predict(const Pi05Batch& batch, const at::Tensor& x_t,
                              const at::Tensor& time) const {
  const PrefixLayout where = layout(batch);
  const TimeTerms terms = time_terms(time);
  return velocity(encode_prefix(batch, where), where, batch.state, x_t, terms);
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
  out.v_t = predict(batch, out.x_t, time);
  const at::Tensor difference = out.v_t - out.u_t;
  out.elem = difference * difference;
  return out;
}

}  // namespace longship::models
