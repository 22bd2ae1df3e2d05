#include "models/groot/dit.h"

#include <ATen/ops/alias.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/gelu_bias.h"

namespace longship::models {
namespace {

constexpr double kBlockEps = 1e-5;
constexpr double kOutEps = 1e-6;
constexpr int64_t kTimeChannels = 256;
constexpr double kMaxPeriod = 10000.0;

/// LayerNorm without weights.
at::Tensor bare_norm(const at::Tensor& x, double eps) {
  if (x.is_meta()) return at::empty_like(x);  // LibTorch has no meta kernel of its own
  return at::layer_norm(x, {x.size(-1)}, {}, {}, eps);
}

/// 1 + scale is rounded to the dtype of the modulation, as in the reference; the rest is promoted
/// to the dtype of x.
at::Tensor modulate(const at::Tensor& x, const GrootModulation& m, double eps) {
  return bare_norm(x, eps) * (1.0 + m.scale).unsqueeze(1) + m.shift.unsqueeze(1);
}

/// Products of x with several layers, as one when `stacked`.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<const nn::Linear*>& layers,
                                 bool stacked) {
  std::vector<at::Tensor> out, weights, biases;
  std::vector<int64_t> rows;
  for (const nn::Linear* layer : layers) {
    if (!stacked) {
      out.push_back(layer->forward(x));
      continue;
    }
    // Weights stored in another dtype are cast one by one: stacking them first would copy them in
    // the wider dtype too.
    weights.push_back(layer->weight.to(x.scalar_type()));
    biases.push_back(layer->bias.to(x.scalar_type()));
    rows.push_back(layer->weight.size(0));
  }
  return stacked ? nn::stacked_linear(x, weights, biases).split_with_sizes(rows, -1) : out;
}

at::Tensor hidden_layer(const nn::Linear& layer, const at::Tensor& x, bool fused) {
  if (fused && layer.weight.scalar_type() == x.scalar_type()) {
    return ops::gelu_bias(nn::stacked_linear(x, {layer.weight}), layer.bias);
  }
  return at::gelu(layer.forward(x), "tanh");
}

// The kernels are for head widths that are multiples of 8.
bool flash_reads(const at::Tensor& q, const nn::Fused& fused) {
  return fused.attention && q.is_cuda() && q.scalar_type() == at::kBFloat16 && q.size(-1) % 8 == 0;
}

bool is_recomputed(const GrootRun& run, const std::string& unit) {
  return run.recomputed && run.recomputed(unit);
}

}  // namespace

at::Tensor GrootRun::drop(const at::Tensor& x, int64_t site) const {
  return dropout ? dropout(x, site) : x;
}

GrootAttention::GrootAttention(const GrootBlockSizes& s)
    : to_q(s.width, s.heads * s.head_dim, true),
      to_k(s.context > 0 ? s.context : s.width, s.heads * s.head_dim, true),
      to_v(s.context > 0 ? s.context : s.width, s.heads * s.head_dim, true),
      to_out(s.heads * s.head_dim, s.width, true) {
  register_child("to_q", to_q);
  register_child("to_k", to_k);
  register_child("to_v", to_v);
  register_child("to_out.0", to_out);
  if (s.context > 0) {
    register_stack({&to_k.weight, &to_v.weight});
    register_stack({&to_k.bias, &to_v.bias});
  } else {
    register_stack({&to_q.weight, &to_k.weight, &to_v.weight});
    register_stack({&to_q.bias, &to_k.bias, &to_v.bias});
  }
}

GrootFeedForward::GrootFeedForward(int64_t width)
    : in(width, 4 * width, true), out(4 * width, width, true) {
  register_child("net.0.proj", in);
  register_child("net.2", out);
}

GrootBlock::GrootBlock(const GrootBlockSizes& sizes)
    : attn1(sizes), ff(sizes.width), sizes_(sizes) {
  if (sizes.adaptive) {
    norm1_linear = std::make_unique<nn::Linear>(sizes.width, 2 * sizes.width, true);
    register_child("norm1.linear", *norm1_linear);
  } else {
    norm1 = std::make_unique<nn::LayerNorm>(sizes.width, kBlockEps);
    norm3 = std::make_unique<nn::LayerNorm>(sizes.width, kBlockEps);
    register_child("norm1", *norm1);
    register_child("norm3", *norm3);
  }
  register_child("attn1", attn1);
  register_child("ff", ff);
}

std::vector<at::Tensor> GrootBlock::keys_values(const at::Tensor& rows, const GrootRun& run) const {
  // One node for the rows, which all cross blocks share: its gradient is the block's sum, so that
  // the sums over blocks have the same order whether units run alone or not.
  const at::Tensor in = at::alias(rows).to(run.precision.gemm);
  std::vector<at::Tensor> out = products(in, {&attn1.to_k, &attn1.to_v}, run.fused.stacked);
  for (at::Tensor& t : out) t = t.unflatten(-1, {sizes_.heads, sizes_.head_dim});
  return out;
}

at::Tensor GrootBlock::attend(const at::Tensor& u, at::Tensor keys, at::Tensor values,
                              const GrootRows& source, const GrootRun& run) const {
  const auto heads = [&](const at::Tensor& t) {
    return t.unflatten(-1, {sizes_.heads, sizes_.head_dim});
  };
  if (!keys.defined()) {
    const std::vector<at::Tensor> qkv =
        products(u, {&attn1.to_q, &attn1.to_k, &attn1.to_v}, run.fused.stacked);
    const at::Tensor q = heads(qkv[0]), k = heads(qkv[1]), v = heads(qkv[2]);
    return flash_reads(q, run.fused) ? nn::dense_attention(q, k, v) : nn::attention(q, k, v);
  }
  const at::Tensor q = heads(attn1.to_q.forward(u));
  if (!source.mask.defined() && flash_reads(q, run.fused)) {
    return nn::dense_attention(q, keys, values);
  }
  const at::Tensor mixed = nn::attention(q, keys, values, source.mask);
  return source.present.defined() ? mixed * source.present.to(mixed.scalar_type()) : mixed;
}

at::Tensor GrootBlock::forward(const at::Tensor& x, const GrootModulation& modulation,
                               const at::Tensor& keys, const at::Tensor& values,
                               const GrootRows& source, const GrootRun& run,
                               int64_t first_site) const {
  const at::ScalarType gemm = run.precision.gemm;
  const auto last_drop = [&](const at::Tensor& t, int64_t site) {
    return sizes_.final_dropout ? run.drop(t, first_site + site) : t;
  };
  const at::Tensor u =
      norm1_linear ? modulate(x, modulation, kBlockEps) : norm1->forward(x, run.fused.norms);
  const at::Tensor mixed = attend(u.to(gemm), keys, values, source, run);
  const at::Tensor attended = run.drop(attn1.to_out.forward(mixed), first_site);
  // The reference drops the attention's result twice.
  const at::Tensor middle = x + last_drop(attended, 1);
  const at::Tensor f =
      norm3 ? norm3->forward(middle, run.fused.norms) : bare_norm(middle, kBlockEps);
  const at::Tensor hidden =
      run.drop(hidden_layer(ff.in, f.to(gemm), run.fused.activations), first_site + 2);
  return middle + last_drop(ff.out.forward(hidden), 3);
}

std::string groot_dit_unit(int64_t block) {
  return fmt::format("dit.{}", block);
}

std::string groot_vl_unit(int64_t block) {
  return fmt::format("vl.{}", block);
}

GrootDit::GrootDit(const GrootDitSizes& sizes)
    : sizes_(sizes),
      time_in_(kTimeChannels, sizes.width, true),
      time_out_(sizes.width, sizes.width, true),
      proj_out_1_(sizes.width, 2 * sizes.width, true),
      proj_out_2_(sizes.width, sizes.out, true) {
  register_child("timestep_encoder.timestep_embedder.linear_1", time_in_);
  register_child("timestep_encoder.timestep_embedder.linear_2", time_out_);
  std::vector<at::Tensor*> weights, biases;
  for (int64_t i = 0; i < sizes.depth; ++i) {
    blocks_.push_back(
        std::make_unique<GrootBlock>(GrootBlockSizes{.width = sizes.width,
                                                     .context = is_cross(i) ? sizes.context : 0,
                                                     .heads = sizes.heads,
                                                     .head_dim = sizes.head_dim,
                                                     .adaptive = true,
                                                     .final_dropout = sizes.final_dropout}));
    register_child(fmt::format("transformer_blocks.{}", i), *blocks_.back());
    weights.push_back(&blocks_.back()->norm1_linear->weight);
    biases.push_back(&blocks_.back()->norm1_linear->bias);
  }
  register_child("proj_out_1", proj_out_1_);
  register_child("proj_out_2", proj_out_2_);
  weights.push_back(&proj_out_1_.weight);
  biases.push_back(&proj_out_1_.bias);
  register_stack(weights);
  register_stack(biases);
}

at::Tensor GrootDit::embed_time(const at::Tensor& bucket, const GrootRun& run) const {
  // diffusers Timesteps(256, flip_sin_to_cos, downscale_freq_shift 1) in fp32, operations in its
  // order: angles reach 999, where another order differs in the fifth digit.
  const int64_t half = kTimeChannels / 2;
  const at::Tensor k = at::arange(half, bucket.options().dtype(at::kFloat));
  const at::Tensor frequency = at::exp(k * -std::log(kMaxPeriod) / static_cast<double>(half - 1));
  const at::Tensor angle = bucket.to(at::kFloat).unsqueeze(-1) * frequency;
  const at::Tensor channels = at::cat({at::cos(angle), at::sin(angle)}, -1);
  return time_out_.forward(at::silu(time_in_.forward(channels.to(run.precision.gemm))));
}

std::vector<GrootModulation> GrootDit::modulations(const at::Tensor& temb,
                                                   const GrootRun& run) const {
  std::vector<const nn::Linear*> layers;
  for (const auto& block : blocks_) layers.push_back(block->norm1_linear.get());
  layers.push_back(&proj_out_1_);
  std::vector<GrootModulation> out;
  for (const at::Tensor& both : products(at::silu(temb), layers, run.fused.stacked)) {
    const std::vector<at::Tensor> halves = both.split(sizes_.width, -1);
    out.push_back({halves[0], halves[1]});
  }
  std::swap(out.back().scale, out.back().shift);  // the output's shift comes first
  return out;
}

const GrootRows& GrootDit::source(const GrootVlContext& context, int64_t block) const {
  if (!sizes_.alternate_vl) return context.all;
  return block % (2 * sizes_.attend_text_every_n_blocks) == 0 ? context.text : context.image;
}

at::Tensor GrootDit::forward(const at::Tensor& x, const std::vector<GrootModulation>& modulations,
                             const GrootVlContext& context, const GrootRun& run, int64_t first_site,
                             GrootCrossCache* cache) const {
  LS_CHECK(modulations.size() == blocks_.size() + 1, InternalError,
           "DiT: {} blocks and the output need as many modulations, got {}", blocks_.size(),
           modulations.size());
  if (cache != nullptr) {
    cache->keys.resize(blocks_.size());
    cache->values.resize(blocks_.size());
  }
  at::Tensor h = x;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const GrootBlock* block = blocks_[i].get();
    const int64_t index = static_cast<int64_t>(i), site = first_site + kGrootSitesPerBlock * index;
    const bool cross = is_cross(index), cached = cross && cache && cache->keys[i].defined();
    // Everything that needs a gradient is an input of the unit; masks need none.
    std::vector<at::Tensor> inputs{h, modulations[i].scale, modulations[i].shift};
    GrootRows rows;
    if (cross) rows = source(context, index);
    if (cached) {
      inputs.insert(inputs.end(), {cache->keys[i], cache->values[i]});
    } else if (cross) {
      inputs.push_back(rows.rows);
    }
    rows.rows = at::Tensor();
    const bool keep = cross && cache != nullptr && !cached;
    const auto unit = [block, run, rows, site, cross, cached,
                       keep](const std::vector<at::Tensor>& in) {
      std::vector<at::Tensor> kv(2);
      if (cached) kv = {in[3], in[4]};
      if (cross && !cached) kv = block->keys_values(in[3], run);
      std::vector<at::Tensor> out{
          block->forward(in[0], {in[1], in[2]}, kv[0], kv[1], rows, run, site)};
      if (keep) out.insert(out.end(), kv.begin(), kv.end());
      return out;
    };
    const std::string name = groot_dit_unit(index);
    const std::vector<at::Tensor> out =
        nn::run_unit(run.hooks, name, is_recomputed(run, name), unit, inputs);
    h = out[0];
    if (keep) {
      cache->keys[i] = out[1];
      cache->values[i] = out[2];
    }
    if (run.tap) run.record(fmt::format("act.dit_block{}", i), h);
  }
  run.record("act.dit_last_block", h);
  const at::Tensor y = modulate(h, modulations.back(), kOutEps);
  const at::Tensor out = proj_out_2_.forward(y.to(run.precision.gemm));
  run.record("act.dit_out", out);
  return out;
}

GrootVlAttention::GrootVlAttention(int64_t depth, const GrootBlockSizes& sizes) {
  for (int64_t i = 0; i < depth; ++i) {
    blocks_.push_back(std::make_unique<GrootBlock>(sizes));
    register_child(fmt::format("transformer_blocks.{}", i), *blocks_.back());
  }
}

at::Tensor GrootVlAttention::forward(const at::Tensor& x, const GrootRun& run) const {
  at::Tensor h = x;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const GrootBlock* block = blocks_[i].get();
    const int64_t index = static_cast<int64_t>(i), site = kGrootSitesPerBlock * index;
    const auto unit = [block, run, site](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{block->forward(in[0], {}, {}, {}, {}, run, site)};
    };
    const std::string name = groot_vl_unit(index);
    h = nn::run_unit(run.hooks, name, is_recomputed(run, name), unit, {h})[0];
  }
  return h;
}

}  // namespace longship::models
