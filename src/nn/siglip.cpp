#include "nn/siglip.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <fmt/core.h>

#include <optional>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"
#include "nn/stacked_linear.h"
#include "nn/tensor_math.h"

namespace longship::nn {

SiglipAttention::SiglipAttention(int64_t width, int64_t num_heads)
    : q_proj(width, width, true),
      k_proj(width, width, true),
      v_proj(width, width, true),
      out_proj(width, width, true),
      num_heads_(num_heads) {
  register_child("q_proj", q_proj);
  register_child("k_proj", k_proj);
  register_child("v_proj", v_proj);
  register_child("out_proj", out_proj);
  register_stack({&q_proj.weight, &k_proj.weight, &v_proj.weight});
  register_stack({&q_proj.bias, &k_proj.bias, &v_proj.bias});
}

namespace {

// Each pair (2i, 2i + 1) as one complex number. x [P, H, E]; cos, sin [P, 1, E / 2].
at::Tensor rotate_pairs(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor pairs = x.to(cos.scalar_type()).unflatten(-1, {-1, 2});
  const at::Tensor re = pairs.select(-1, 0), im = pairs.select(-1, 1);
  return at::stack({re * cos - im * sin, re * sin + im * cos}, -1).flatten(-2).to(x.scalar_type());
}

}  // namespace

at::Tensor SiglipAttention::mix(const at::Tensor& x, const Fused& fused,
                                const SiglipRows* rows) const {
  const int64_t width = x.size(-1), head_dim = width / num_heads_;
  std::vector<at::Tensor> qkv;
  if (fp8_qkv) {
    qkv = fp8_qkv
              ->forward(x, {q_proj.weight, k_proj.weight, v_proj.weight},
                        at::cat({q_proj.bias, k_proj.bias, v_proj.bias}))
              .split(width, -1);
  } else if (fused.stacked) {
    qkv = stacked_linear(x, {q_proj.weight, k_proj.weight, v_proj.weight},
                         {q_proj.bias, k_proj.bias, v_proj.bias})
              .split(width, -1);
  } else {
    qkv = {q_proj.forward(x), k_proj.forward(x), v_proj.forward(x)};
  }
  for (at::Tensor& t : qkv) t = t.unflatten(-1, {num_heads_, head_dim});
  if (rows != nullptr) {
    if (rows->cos.defined()) {
      for (size_t i = 0; i < 2; ++i) qkv[i] = rotate_pairs(qkv[i], rows->cos, rows->sin);
    }
    return packed_self_attention(qkv[0], qkv[1], qkv[2], rows->pictures, /*causal=*/false,
                                 fused.attention);
  }
  return fused.attention && flash_takes(qkv[0]) ? dense_attention(qkv[0], qkv[1], qkv[2])
                                                : attention(qkv[0], qkv[1], qkv[2]);
}

SiglipLayer::SiglipLayer(const SiglipSizes& sizes)
    : layer_norm1(sizes.width, sizes.eps),
      self_attn(sizes.width, sizes.num_heads),
      layer_norm2(sizes.width, sizes.eps),
      mlp(sizes.width, sizes.mlp_dim) {
  register_child("layer_norm1", layer_norm1);
  register_child("self_attn", self_attn);
  register_child("layer_norm2", layer_norm2);
  register_child("mlp", mlp);
}

Normed SiglipLayer::forward(const Normed& x, const LayerNorm& next,
                            const SiglipPrecision& precision, const Fused& fused,
                            const SiglipRows* rows) const {
  // The bias belongs into the product, before its only rounding: h and a rounded product often sum
  // to the middle between two bf16 values, where any bias, however small, would decide.
  const auto add = [&](const at::Tensor& h, const at::Tensor& branch, const LayerNorm& norm) {
    return add_layer_norm(h, branch, norm.weight, norm.bias, norm.eps(), fused.norms);
  };
  const at::Tensor mixed = self_attn.mix(x.y.to(precision.gemm), fused, rows);
  const Normed middle =
      add(x.h, product(self_attn.out_proj, mixed, self_attn.fp8_out), layer_norm2);
  const at::Tensor hidden = mlp.hidden(middle.y.to(precision.gemm), fused.activations);
  return add(middle.h, product(mlp.fc2, hidden, mlp.fp8_fc2), next);
}

SiglipTower::SiglipTower(const SiglipSizes& sizes)
    : sizes_(sizes), post_layernorm_(sizes.width, sizes.eps) {
  const int64_t patch = sizes.patch_size;
  register_parameter("vision_model.embeddings.patch_embedding.weight", patch_weight_,
                     {sizes.width, 3, patch, patch});
  register_parameter("vision_model.embeddings.patch_embedding.bias", patch_bias_, {sizes.width});
  register_parameter("vision_model.embeddings.position_embedding.weight", position_,
                     {sizes.num_tokens(), sizes.width});
  for (int64_t i = 0; i < sizes.depth; ++i) {
    layers_.push_back(std::make_unique<SiglipLayer>(sizes));
    register_child(fmt::format("vision_model.encoder.layers.{}", i), *layers_.back());
  }
  register_child("vision_model.post_layernorm", post_layernorm_);
}

at::Tensor SiglipTower::embed(const at::Tensor& images, const SiglipPrecision& precision) const {
  LS_CHECK(images.dim() == 4 && images.size(1) == 3 && images.size(2) == sizes_.image_size &&
               images.size(3) == sizes_.image_size,
           ShapeError,
           "SigLIP: images must be [V, 3, {0}, {0}], got {1} dimensions with last {2}x{3}",
           sizes_.image_size, images.dim(), images.size(-2), images.size(-1));
  const int64_t patch = sizes_.patch_size, grid = sizes_.image_size / patch, used = grid * patch;
  // A convolution with stride = kernel is a product over unfolded patches, in (channel, row,
  // column) order.
  const at::Tensor patches = images.narrow(2, 0, used)
                                 .narrow(3, 0, used)
                                 .reshape({images.size(0), 3, grid, patch, grid, patch})
                                 .permute({0, 2, 4, 1, 3, 5})
                                 .reshape({images.size(0), grid * grid, 3 * patch * patch});
  const at::Tensor x =
      linear(patches.to(patch_weight_.scalar_type()), patch_weight_.flatten(1), patch_bias_);
  return (x + position_).to(precision.stream);
}

at::Tensor run_siglip_layers(const std::vector<std::unique_ptr<SiglipLayer>>& layers,
                             const LayerNorm& last, const at::Tensor& embeddings,
                             const SiglipPrecision& precision, const Fused& fused,
                             const LayerRunner& run, const SiglipRowsOf& rows_of) {
  // Mixed streams (fp32 residual around bf16 products) take the plain path.
  const Fused used = precision.gemm == precision.stream ? fused : Fused{};
  if (layers.empty()) return last.forward(embeddings, used.norms);
  Normed x{embeddings, layers.front()->layer_norm1.forward(embeddings, used.norms)};
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerNorm& next = l + 1 < layers.size() ? layers[l + 1]->layer_norm1 : last;
    const SiglipLayer* layer = layers[l].get();
    const std::shared_ptr<const SiglipRows> rows =
        rows_of ? rows_of(static_cast<int64_t>(l)) : nullptr;
    const auto unit = [layer, &next, precision, used, rows](const std::vector<at::Tensor>& in) {
      const Normed out = layer->forward({in[0], in[1]}, next, precision, used, rows.get());
      return std::vector<at::Tensor>{out.h, out.y};
    };
    const std::vector<at::Tensor> in{x.h, x.y};
    const std::vector<at::Tensor> out = run ? run(static_cast<int64_t>(l), unit, in) : unit(in);
    x = {out[0], out[1]};
  }
  return x.y;
}

at::Tensor SiglipTower::encode(const at::Tensor& embeddings, const SiglipPrecision& precision,
                               const Fused& fused, const LayerRunner& run) const {
  return run_siglip_layers(layers_, post_layernorm_, embeddings, precision, fused, run);
}

void use_siglip_fp8(const std::vector<std::unique_ptr<SiglipLayer>>& layers, Fp8Layers& fp8,
                    const std::string& prefix) {
  for (size_t l = 0; l < layers.size(); ++l) {
    SiglipLayer& layer = *layers[l];
    const auto name = [&](const char* part) { return fmt::format("{}.{}.{}", prefix, l, part); };
    SiglipAttention& attention = layer.self_attn;
    attention.fp8_qkv = fp8.linear(
        name("qkv"), {attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight});
    attention.fp8_out = fp8.linear(name("out"), {attention.out_proj.weight});
    layer.mlp.fp8_fc1 = fp8.linear(name("fc1"), {layer.mlp.fc1.weight});
    layer.mlp.fp8_fc2 = fp8.linear(name("fc2"), {layer.mlp.fc2.weight});
  }
}

}  // namespace longship::nn
