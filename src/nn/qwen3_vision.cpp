#include "nn/qwen3_vision.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sin.h>
#include <fmt/core.h>

#include "base/error.h"
#include "nn/functions.h"
#include "nn/mrope.h"
#include "nn/norm.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"
#include "ops/gelu_bias.h"
#include "ops/rope_qkv.h"

namespace longship::nn {

at::Tensor patch_angles(const at::Tensor& rows, const at::Tensor& columns, int64_t head_dim,
                        double theta, at::ScalarType dtype) {
  const at::Tensor inverse =
      inverse_frequencies(head_dim / 2, theta, rows.options().dtype(dtype));  // [head_dim / 4]
  return at::cat(
      {rows.to(dtype).unsqueeze(-1) * inverse, columns.to(dtype).unsqueeze(-1) * inverse}, -1);
}

at::Tensor interpolate_positions(const at::Tensor& table, const at::Tensor& index,
                                 const at::Tensor& weight) {
  const at::Tensor rounded = weight.to(table.scalar_type());
  at::Tensor sum;
  for (int64_t corner = 0; corner < index.size(1); ++corner) {
    const at::Tensor part =
        select_rows(table, index.select(1, corner)) * rounded.select(1, corner).unsqueeze(-1);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

Qwen3VisionAttention::Qwen3VisionAttention(int64_t width, int64_t num_heads)
    : qkv(width, 3 * width, true), proj(width, width, true), num_heads_(num_heads) {
  register_child("qkv", qkv);
  register_child("proj", proj);
}

at::Tensor Qwen3VisionAttention::mix(const at::Tensor& x, const PackedSamples& pictures,
                                     const PatchRotation& rotation, const Fused& fused) const {
  const int64_t head_dim = x.size(1) / num_heads_;
  const at::Tensor all = product(qkv, x, fp8_qkv);
  if (all.is_meta()) return at::empty_like(x);  // LibTorch has no meta kernels for the mask
  const auto& [cos, sin] = rotation.table;
  if (fused.rope) {
    const auto [q, k, v] = ops::rope_qkv(all, cos.squeeze(1), sin.squeeze(1), rotation.order,
                                         num_heads_, num_heads_, head_dim);
    return packed_self_attention(q, k, v, pictures, /*causal=*/false, fused.attention);
  }
  const at::Tensor heads = all.view({x.size(0), 3, num_heads_, head_dim});
  return packed_self_attention(apply_rope(heads.select(1, 0), rotation.table),
                               apply_rope(heads.select(1, 1), rotation.table), heads.select(1, 2),
                               pictures, /*causal=*/false, fused.attention);
}

Qwen3VisionMlp::Qwen3VisionMlp(int64_t width, int64_t hidden)
    : linear_fc1(width, hidden, true), linear_fc2(hidden, width, true) {
  register_child("linear_fc1", linear_fc1);
  register_child("linear_fc2", linear_fc2);
}

at::Tensor Qwen3VisionMlp::forward(const at::Tensor& x, const Fused& fused) const {
  if (fused.activations && linear_fc1.weight.scalar_type() == x.scalar_type()) {
    const at::Tensor first =
        fp8_fc1 ? fp8_fc1->forward(x, {linear_fc1.weight}) : stacked_linear(x, {linear_fc1.weight});
    return product(linear_fc2, ops::gelu_bias(first, linear_fc1.bias), fp8_fc2);
  }
  return product(linear_fc2, at::gelu(product(linear_fc1, x, fp8_fc1), "tanh"), fp8_fc2);
}

Qwen3VisionBlock::Qwen3VisionBlock(const Qwen3VisionSizes& s)
    : norm1(s.width, s.eps),
      attn(s.width, s.num_heads),
      norm2(s.width, s.eps),
      mlp(s.width, s.mlp_dim) {
  register_child("norm1", norm1);
  register_child("norm2", norm2);
  register_child("attn", attn);
  register_child("mlp", mlp);
}

at::Tensor Qwen3VisionBlock::forward(const at::Tensor& h, const PackedSamples& pictures,
                                     const PatchRotation& rotation, const Fused& fused) const {
  const at::Tensor branch = product(
      attn.proj, attn.mix(norm1.forward(h, fused.norms), pictures, rotation, fused), attn.fp8_out);
  const Normed middle =
      add_layer_norm(h, branch, norm2.weight, norm2.bias, norm2.eps(), fused.norms);
  return middle.h + mlp.forward(middle.y, fused);
}

Qwen3PatchMerger::Qwen3PatchMerger(const Qwen3VisionSizes& s, bool norm_groups)
    : norm(norm_groups ? s.width * s.block() : s.width, s.eps),
      linear_fc1(s.width * s.block(), s.width * s.block(), true),
      linear_fc2(s.width * s.block(), s.out_width, true),
      block_(s.block()),
      norm_groups_(norm_groups) {
  register_child("norm", norm);
  register_child("linear_fc1", linear_fc1);
  register_child("linear_fc2", linear_fc2);
}

at::Tensor Qwen3PatchMerger::forward(const at::Tensor& x, const Fused& fused) const {
  const auto grouped = [this](const at::Tensor& rows) {
    return rows.reshape({rows.size(0) / block_, block_ * rows.size(1)});
  };
  const at::Tensor groups =
      norm_groups_ ? norm.forward(grouped(x), fused.norms) : grouped(norm.forward(x, fused.norms));
  return linear_fc2.forward(at::gelu(linear_fc1.forward(groups), "none"));
}

Qwen3Vision::Qwen3Vision(const Qwen3VisionSizes& s) : sizes_(s), merger_(s, false) {
  LS_CHECK(s.num_heads > 0 && s.width % s.num_heads == 0 && s.width / s.num_heads % 4 == 0,
           ConfigError,
           "Qwen3 vision: width {} over {} heads must give heads of a multiple of 4, whose halves "
           "turn with row and column",
           s.width, s.num_heads);
  for (size_t j = 0; j < s.deepstack.size(); ++j) {
    LS_CHECK(s.deepstack[j] >= (j == 0 ? 0 : s.deepstack[j - 1] + 1) && s.deepstack[j] < s.depth,
             ConfigError, "Qwen3 vision: deepstack entry {} is block {}; blocks must rise below {}",
             j, s.deepstack[j], s.depth);
  }
  register_parameter("patch_embed.proj.weight", patch_weight_,
                     {s.width, s.channels, s.temporal_patch, s.patch_size, s.patch_size});
  register_parameter("patch_embed.proj.bias", patch_bias_, {s.width});
  register_parameter("pos_embed.weight", position_, {s.position_side * s.position_side, s.width});
  for (int64_t l = 0; l < s.depth; ++l) {
    blocks_.push_back(std::make_unique<Qwen3VisionBlock>(s));
    register_child(fmt::format("blocks.{}", l), *blocks_.back());
  }
  register_child("merger", merger_);
  for (size_t j = 0; j < s.deepstack.size(); ++j) {
    deepstack_mergers_.push_back(std::make_unique<Qwen3PatchMerger>(s, true));
    register_child(fmt::format("deepstack_merger_list.{}", j), *deepstack_mergers_.back());
  }
}

void Qwen3Vision::use_fp8(Fp8Layers& layers, const std::string& prefix) {
  for (size_t l = 0; l < blocks_.size(); ++l) {
    Qwen3VisionBlock& block = *blocks_[l];
    const auto name = [&](const char* part) { return fmt::format("{}.{}.{}", prefix, l, part); };
    block.attn.fp8_qkv = layers.linear(name("qkv"), {block.attn.qkv.weight});
    block.attn.fp8_out = layers.linear(name("out"), {block.attn.proj.weight});
    block.mlp.fp8_fc1 = layers.linear(name("fc1"), {block.mlp.linear_fc1.weight});
    block.mlp.fp8_fc2 = layers.linear(name("fc2"), {block.mlp.linear_fc2.weight});
  }
}

at::Tensor Qwen3Vision::embed(const at::Tensor& patches, const PatchTables& tables) const {
  // A convolution with stride = kernel over one patch is a product.
  const at::Tensor x =
      linear(patches.to(patch_weight_.scalar_type()), patch_weight_.flatten(1), patch_bias_);
  const at::Tensor position =
      interpolate_positions(position_, tables.position_index, tables.position_weight);
  if (tap) {
    tap("vision.patches", x);
    tap("vision.pos_embed", position);
  }
  return x + position;
}

Qwen3VisionFeatures Qwen3Vision::forward(const at::Tensor& patches, const PatchTables& tables,
                                         const PackedSamples& pictures) const {
  const int64_t count = patches.size(0);
  LS_CHECK(
      patches.dim() == 2 && patches.size(1) == sizes_.patch_values() && count % sizes_.block() == 0,
      ShapeError, "Qwen3 vision: patches must be [multiple of {}, {}], got [{}, {}]",
      sizes_.block(), sizes_.patch_values(), count, patches.size(-1));
  LS_CHECK(tables.rows.size(0) == count && tables.columns.size(0) == count &&
               tables.position_index.size(0) == count && tables.position_weight.size(0) == count,
           ShapeError, "Qwen3 vision: {} patches, but tables of {}, {}, {} and {}", count,
           tables.rows.size(0), tables.columns.size(0), tables.position_index.size(0),
           tables.position_weight.size(0));
  at::Tensor h = embed(patches, tables);
  const at::ScalarType wide = h.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor angle =
      patch_angles(tables.rows, tables.columns, sizes_.width / sizes_.num_heads, sizes_.theta, wide)
          .unsqueeze(-2);
  if (tap) tap("vision.rot_pos_emb", angle.squeeze(-2));
  const PatchRotation rotation{{at::cos(angle), at::sin(angle)},
                               at::arange(count, angle.options().dtype(at::kInt))};
  Qwen3VisionFeatures out;
  for (int64_t l = 0; l < sizes_.depth; ++l) {
    const Qwen3VisionBlock* block = blocks_[static_cast<size_t>(l)].get();
    const size_t next = out.deepstack.size();
    const Qwen3PatchMerger* merger = next < sizes_.deepstack.size() && sizes_.deepstack[next] == l
                                         ? deepstack_mergers_[next].get()
                                         : nullptr;
    const auto unit = [=, used = fused](const std::vector<at::Tensor>& in) {
      std::vector<at::Tensor> outputs{block->forward(in[0], pictures, rotation, used)};
      if (merger) outputs.push_back(merger->forward(outputs[0], used));
      return outputs;
    };
    if (tap) tap(fmt::format("vision_block{}.in", l), h);
    const std::vector<at::Tensor> outputs = run ? run(l, unit, {h}) : unit({h});
    h = outputs[0];
    if (merger) out.deepstack.push_back(outputs[1]);
    if (tap) tap(fmt::format("vision_block{}.out", l), h);
  }
  out.merged = merger_.forward(h, fused);
  return out;
}

}  // namespace longship::nn
