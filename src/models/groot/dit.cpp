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
#include "nn/halves.h"
#include "nn/packed_attention.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/gelu_bias.h"
#include "ops/stream_norm.h"

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

ops::StreamNorm own_norm(const nn::LayerNorm& norm) {
  return {norm.weight, norm.bias, /*plus_one=*/false, norm.eps()};
}

/// x as it is, and its norm in the dtype of the products.
std::pair<at::Tensor, at::Tensor> normed(const at::Tensor& x, const ops::StreamNorm& norm,
                                         const GrootRun& run) {
  return ops::stream_norm(x, norm, run.precision.gemm);
}

/// Products of x with several layers, as one when `stacked` or in FP8.
std::vector<at::Tensor> products(const at::Tensor& x, const std::vector<const nn::Linear*>& layers,
                                 bool stacked, const nn::Fp8Linear* fp8 = nullptr) {
  std::vector<at::Tensor> out, weights, biases;
  std::vector<int64_t> rows;
  for (const nn::Linear* layer : layers) {
    if (!stacked && fp8 == nullptr) {
      out.push_back(layer->forward(x));
      continue;
    }
    // Weights stored in another dtype are cast one by one: stacking them first would copy them in
    // the wider dtype too.
    weights.push_back(layer->weight.to(x.scalar_type()));
    biases.push_back(layer->bias.to(x.scalar_type()));
    rows.push_back(layer->weight.size(0));
  }
  if (!out.empty()) return out;
  if (fp8 == nullptr) return nn::stacked_linear_parts(x, weights, biases);
  return fp8->forward(x, weights, at::cat(biases)).split_with_sizes(rows, -1);
}

/// gelu_tanh of the layer, with the dropout of `site`.
at::Tensor hidden_layer(const nn::Linear& layer, const at::Tensor& x, const GrootRun& run,
                        int64_t site, const nn::Fp8Linear* fp8) {
  if (!run.fused.activations || layer.weight.scalar_type() != x.scalar_type()) {
    return run.drop(at::gelu(nn::product(layer, x, fp8), "tanh"), site);
  }
  const at::Tensor product =
      fp8 ? fp8->forward(x, {layer.weight}) : nn::stacked_linear(x, {layer.weight});
  if (!run.dropout.has_keys()) return run.drop(ops::gelu_bias(product, layer.bias), site);
  return ops::gelu_bias_dropout(product, layer.bias, run.dropout.keys(), site,
                                run.dropout.probability(site));
}

/// The layer's result as a branch of the stream. Its bias is added, and what has keys is dropped,
/// where the branch is added.
ops::StreamBranch branch_of(const nn::Linear& layer, const at::Tensor& x,
                            const std::vector<int64_t>& sites, const GrootRun& run,
                            const nn::Fp8Linear* fp8) {
  ops::StreamBranch out;
  if (run.dropout && !run.dropout.has_keys()) {
    out.values = nn::product(layer, x, fp8);
    for (const int64_t site : sites) out.values = run.drop(out.values, site);
    return out;
  }
  out.values = nn::product(layer, x, fp8, /*with_bias=*/false);
  out.bias = layer.bias;
  if (!run.dropout || sites.empty()) return out;
  out.keys = run.dropout.keys();
  out.sites = sites;
  out.p = run.dropout.probability(sites.front());  // all sites of a block have one
  return out;
}

bool flash_reads(const at::Tensor& q, const nn::Fused& fused) {
  return fused.attention && nn::flash_takes(q);
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
      to_out(s.heads * s.head_dim, s.width, true),
      reads_others_(s.context > 0) {
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

void GrootAttention::use_fp8(nn::Fp8Layers& layers, const std::string& prefix) {
  if (reads_others_) {
    fp8_q = layers.linear(prefix + ".q", {to_q.weight});
    fp8_kv = layers.linear(prefix + ".kv", {to_k.weight, to_v.weight});
  } else {
    fp8_qkv = layers.linear(prefix + ".qkv", {to_q.weight, to_k.weight, to_v.weight});
  }
  fp8_out = layers.linear(prefix + ".out", {to_out.weight});
}

GrootFeedForward::GrootFeedForward(int64_t width)
    : in(width, 4 * width, true), out(4 * width, width, true) {
  register_child("net.0.proj", in);
  register_child("net.2", out);
}

void GrootFeedForward::use_fp8(nn::Fp8Layers& layers, const std::string& prefix) {
  fp8_in = layers.linear(prefix + ".fc1", {in.weight});
  fp8_out = layers.linear(prefix + ".fc2", {out.weight});
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

void GrootBlock::use_fp8(nn::Fp8Layers& layers, const std::string& prefix) {
  attn1.use_fp8(layers, prefix);
  ff.use_fp8(layers, prefix);
}

std::vector<at::Tensor> GrootBlock::keys_values(const at::Tensor& rows, const GrootRun& run) const {
  // One node for the rows: its gradient is the block's sum, in one order whether units run alone
  // or not.
  const at::Tensor in = at::alias(rows).to(run.precision.gemm);
  std::vector<at::Tensor> out =
      products(in, {&attn1.to_k, &attn1.to_v}, run.fused.stacked, attn1.fp8_kv);
  for (at::Tensor& t : out) t = t.unflatten(-1, {sizes_.heads, sizes_.head_dim});
  return out;
}

at::Tensor GrootBlock::attend(const at::Tensor& u, at::Tensor keys, at::Tensor values,
                              const GrootRows& source, const GrootRun& run,
                              const nn::PackedSamples& own) const {
  const auto heads = [&](const at::Tensor& t) {
    return t.unflatten(-1, {sizes_.heads, sizes_.head_dim});
  };
  if (!keys.defined()) {
    const std::vector<at::Tensor> qkv =
        products(u, {&attn1.to_q, &attn1.to_k, &attn1.to_v}, run.fused.stacked, attn1.fp8_qkv);
    const at::Tensor q = heads(qkv[0]), k = heads(qkv[1]), v = heads(qkv[2]);
    if (own.cu_seqlens.defined() && !u.is_meta()) {
      return nn::packed_self_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), own,
                                       /*causal=*/false, run.fused.attention)
          .unflatten(0, {u.size(0), u.size(1)});
    }
    return flash_reads(q, run.fused) ? nn::dense_attention(q, k, v) : nn::attention(q, k, v);
  }
  const at::Tensor q = heads(attn1.fp8_q ? nn::product(attn1.to_q, u, attn1.fp8_q)
                                         : products(u, {&attn1.to_q}, run.fused.stacked).front());
  if (source.cu.defined()) return read_packed_rows(q, keys, values, source);
  if (!source.mask.defined() && flash_reads(q, run.fused)) {
    return nn::dense_attention(q, keys, values);
  }
  const at::Tensor mixed = nn::attention(q, keys, values, source.mask);
  return source.present.defined() ? mixed * source.present.to(mixed.scalar_type()) : mixed;
}

at::Tensor GrootBlock::forward(const at::Tensor& x, const GrootModulation& modulation,
                               const at::Tensor& keys, const at::Tensor& values,
                               const GrootRows& source, const GrootRun& run, int64_t first_site,
                               const nn::PackedSamples& own) const {
  const at::ScalarType gemm = run.precision.gemm;
  const std::vector<int64_t> first = attention_sites(first_site);
  const std::vector<int64_t> last = feed_forward_sites(first_site);
  const int64_t hidden_site = first_site + 2;
  if (run.fused.norms) {
    const ops::StreamNorm bare{.eps = kBlockEps};
    const auto [h, u] = normed(x,
                               norm1 ? own_norm(*norm1)
                                     : ops::StreamNorm{.scale = modulation.scale,
                                                       .shift = modulation.shift,
                                                       .eps = kBlockEps},
                               run);
    const at::Tensor mixed = attend(u, keys, values, source, run, own);
    const auto [middle, f] =
        ops::add_stream_norm(h, branch_of(attn1.to_out, mixed, first, run, attn1.fp8_out),
                             norm3 ? own_norm(*norm3) : bare);
    return ops::add_dropped(
        middle, branch_of(ff.out, hidden_layer(ff.in, f, run, hidden_site, ff.fp8_in), last, run,
                          ff.fp8_out));
  }
  const auto dropped = [&](at::Tensor t, const std::vector<int64_t>& sites) {
    for (const int64_t site : sites) t = run.drop(t, site);
    return t;
  };
  const at::Tensor u = norm1 ? norm1->forward(x, false) : modulate(x, modulation, kBlockEps);
  const at::Tensor mixed = attend(u.to(gemm), keys, values, source, run, own);
  const at::Tensor middle = x + dropped(nn::product(attn1.to_out, mixed, attn1.fp8_out), first);
  const at::Tensor f = norm3 ? norm3->forward(middle, false) : bare_norm(middle, kBlockEps);
  const at::Tensor hidden = hidden_layer(ff.in, f.to(gemm), run, hidden_site, ff.fp8_in);
  return middle + dropped(nn::product(ff.out, hidden, ff.fp8_out), last);
}

// The reference drops the attention's result twice.
std::vector<int64_t> GrootBlock::attention_sites(int64_t first_site) const {
  if (!sizes_.final_dropout) return {first_site};
  return {first_site, first_site + 1};
}

std::vector<int64_t> GrootBlock::feed_forward_sites(int64_t first_site) const {
  if (!sizes_.final_dropout) return {};
  return {first_site + 3};
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

void GrootDit::use_fp8(nn::Fp8Layers& layers) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->use_fp8(layers, groot_dit_unit(static_cast<int64_t>(i)));
  }
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
    const auto [scale, shift] = nn::halves(both);
    out.push_back({scale, shift});
  }
  std::swap(out.back().scale, out.back().shift);  // the output's shift comes first
  return out;
}

const GrootRows& GrootDit::source(const GrootVlContext& context, int64_t block) const {
  if (!sizes_.alternate_vl) return context.all;
  return block % (2 * sizes_.attend_text_every_n_blocks) == 0 ? context.text : context.image;
}

std::vector<at::Tensor> GrootDit::shared_rows(const GrootVlContext& context, const GrootRun& run,
                                              const GrootCrossCache* cache) const {
  std::vector<at::Tensor> out(blocks_.size());
  for (const GrootRows* rows : {&context.text, &context.image, &context.all}) {
    std::vector<size_t> readers;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const bool cached = cache != nullptr && cache->keys[i].defined();
      const int64_t index = static_cast<int64_t>(i);
      if (is_cross(index) && !cached && &source(context, index) == rows) readers.push_back(i);
    }
    if (readers.empty()) continue;
    const std::vector<at::Tensor> shares =
        fan_out(rows->rows, run.precision.gemm, static_cast<int64_t>(readers.size()));
    for (size_t k = 0; k < readers.size(); ++k) out[readers[k]] = shares[k];
  }
  return out;
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
  const std::vector<at::Tensor> shared = shared_rows(context, run, cache);
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
      inputs.push_back(shared[i]);
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
  const GrootModulation& last = modulations.back();
  const at::Tensor y =
      run.fused.norms
          ? normed(h, {.scale = last.scale, .shift = last.shift, .eps = kOutEps}, run).second
          : modulate(h, last, kOutEps).to(run.precision.gemm);
  const at::Tensor out = proj_out_2_.forward(y);
  run.record("act.dit_out", out);
  return out;
}

GrootVlAttention::GrootVlAttention(int64_t depth, const GrootBlockSizes& sizes) {
  for (int64_t i = 0; i < depth; ++i) {
    blocks_.push_back(std::make_unique<GrootBlock>(sizes));
    register_child(fmt::format("transformer_blocks.{}", i), *blocks_.back());
  }
}

void GrootVlAttention::use_fp8(nn::Fp8Layers& layers) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i]->use_fp8(layers, groot_vl_unit(static_cast<int64_t>(i)));
  }
}

at::Tensor GrootVlAttention::forward(const at::Tensor& x, const GrootRun& run,
                                     const nn::PackedSamples& samples) const {
  at::Tensor h = x;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const GrootBlock* block = blocks_[i].get();
    const int64_t index = static_cast<int64_t>(i), site = kGrootSitesPerBlock * index;
    const auto unit = [block, run, site, samples](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{block->forward(in[0], {}, {}, {}, {}, run, site, samples)};
    };
    const std::string name = groot_vl_unit(index);
    h = nn::run_unit(run.hooks, name, is_recomputed(run, name), unit, {h})[0];
  }
  return h;
}

}  // namespace longship::models
