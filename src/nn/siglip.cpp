#include "nn/siglip.h"

#include <ATen/ops/linear.h>
#include <fmt/core.h>

#include "base/error.h"
#include "nn/attention.h"
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
}

at::Tensor SiglipAttention::forward(const at::Tensor& x) const {
  const int64_t head_dim = x.size(-1) / num_heads_;
  std::vector<at::Tensor> qkv = linear_group(x, {&q_proj, &k_proj, &v_proj});
  for (at::Tensor& t : qkv) t = t.unflatten(-1, {num_heads_, head_dim});
  return out_proj.forward(attention(qkv[0], qkv[1], qkv[2]));
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

at::Tensor SiglipLayer::forward(const at::Tensor& x, const SiglipPrecision& precision) const {
  const at::Tensor h = x + self_attn.forward(layer_norm1.forward(x).to(precision.gemm));
  return h + mlp.forward(layer_norm2.forward(h).to(precision.gemm));
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

at::Tensor SiglipTower::encode(const at::Tensor& embeddings,
                               const SiglipPrecision& precision) const {
  at::Tensor x = embeddings;
  for (const auto& layer : layers_) x = layer->forward(x, precision);
  return post_layernorm_.forward(x);
}

}  // namespace longship::nn
