#include "nn/siglip2.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "nn/functions.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

/// Inputs and weights of one output of a one-dimensional resize.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

// The triangle filter, wider where the table shrinks. In fp32 like the reference's kernel.
std::vector<Taps> triangle_taps(int64_t in, int64_t out) {
  const float scale = static_cast<float>(in) / static_cast<float>(out);
  const float support = scale >= 1.0F ? scale : 1.0F;
  const float inverse = scale >= 1.0F ? 1.0F / scale : 1.0F;
  std::vector<Taps> all;
  for (int64_t i = 0; i < out; ++i) {
    const float center = scale * (static_cast<float>(i) + 0.5F);
    Taps taps;
    taps.first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5F), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5F), in);
    float sum = 0;
    for (int64_t j = taps.first; j < end; ++j) {
      const float at = std::abs((static_cast<float>(j) - center + 0.5F) * inverse);
      taps.weights.push_back(std::max(0.0F, 1.0F - at));
      sum += taps.weights.back();
    }
    for (float& weight : taps.weights) weight /= sum;
    all.push_back(std::move(taps));
  }
  return all;
}

size_t most(const std::vector<Taps>& all) {
  size_t count = 0;
  for (const Taps& taps : all) count = std::max(count, taps.weights.size());
  return count;
}

}  // namespace

TableMix mix_position_table(int64_t side, int64_t rows, int64_t columns) {
  LS_CHECK(side >= 1 && rows >= 1 && columns >= 1, ShapeError,
           "SigLIP2: a position table of side {} for {} x {} patches", side, rows, columns);
  const std::vector<Taps> vertical = triangle_taps(side, rows);
  const std::vector<Taps> horizontal = triangle_taps(side, columns);
  const size_t high = most(vertical), wide = most(horizontal);
  TableMix out;
  out.taps = static_cast<int64_t>(high * wide);
  for (const Taps& v : vertical) {
    for (const Taps& h : horizontal) {
      for (size_t y = 0; y < high; ++y) {
        for (size_t x = 0; x < wide; ++x) {
          const bool used = y < v.weights.size() && x < h.weights.size();
          out.index.push_back(used ? (v.first + static_cast<int64_t>(y)) * side + h.first +
                                         static_cast<int64_t>(x)
                                   : 0);
          out.weight.push_back(used ? v.weights[y] * h.weights[x] : 0.0F);
        }
      }
    }
  }
  return out;
}

std::pair<at::Tensor, at::Tensor> siglip2_rope(const at::Tensor& rows, const at::Tensor& columns,
                                               int64_t head_dim, double base) {
  LS_CHECK(head_dim % 4 == 0, ShapeError, "SigLIP2: the rotation needs heads of 4n, not {}",
           head_dim);
  const at::Tensor steps =
      at::arange(0, head_dim, 4, rows.options().dtype(at::kFloat)) / static_cast<double>(head_dim);
  const at::Tensor frequencies = at::pow(base, steps).reciprocal();
  const auto angles = [&](const at::Tensor& place) {
    return place.to(at::kFloat).unsqueeze(-1) * frequencies;  // [P, head_dim / 4]
  };
  const at::Tensor both = at::stack({angles(columns), angles(rows)}, -1).flatten(-2).unsqueeze(1);
  return {both.cos(), both.sin()};
}

Siglip2PoolingHead::Siglip2PoolingHead(const SiglipSizes& sizes)
    : out_proj_(sizes.width, sizes.width, true),
      layernorm_(sizes.width, sizes.eps),
      fc1_(sizes.width, sizes.mlp_dim, true),
      fc2_(sizes.mlp_dim, sizes.width, true) {
  register_parameter("probe", probe_, {1, 1, sizes.width});
  register_parameter("attention.in_proj_weight", in_proj_weight_, {3 * sizes.width, sizes.width});
  register_parameter("attention.in_proj_bias", in_proj_bias_, {3 * sizes.width});
  register_child("attention.out_proj", out_proj_);
  register_child("layernorm", layernorm_);
  register_child("mlp.fc1", fc1_);
  register_child("mlp.fc2", fc2_);
}

Siglip2Tower::Siglip2Tower(const Siglip2Sizes& sizes)
    : sizes_(sizes), post_layernorm_(sizes.layers.width, sizes.layers.eps) {
  const SiglipSizes& own = sizes.layers;
  register_parameter("vision_model.embeddings.patch_embedding.weight", patch_weight_,
                     {own.width, sizes.patch_values});
  register_parameter("vision_model.embeddings.patch_embedding.bias", patch_bias_, {own.width});
  register_parameter("vision_model.embeddings.position_embedding.weight", position_,
                     {sizes.table_rows, own.width});
  for (int64_t i = 0; i < own.depth; ++i) {
    layers_.push_back(std::make_unique<SiglipLayer>(own));
    register_child(fmt::format("vision_model.encoder.layers.{}", i), *layers_.back());
  }
  register_child("vision_model.post_layernorm", post_layernorm_);
  if (!sizes.pooling_head) return;
  head_ = std::make_unique<Siglip2PoolingHead>(own);
  register_child("vision_model.head", *head_);
}

at::Tensor Siglip2Tower::embed(const at::Tensor& patches, const Siglip2Rows& rows,
                               const SiglipPrecision& precision) const {
  LS_CHECK(patches.dim() == 2 && patches.size(1) == sizes_.patch_values, ShapeError,
           "SigLIP2: patches must be rows of {} values, got {} dimensions of last {}",
           sizes_.patch_values, patches.dim(), patches.size(-1));
  const at::Tensor x = linear(patches.to(patch_weight_.scalar_type()), patch_weight_, patch_bias_);
  const int64_t taps = rows.position_index.size(1);
  // Mixed in fp32, then of the table's dtype again.
  const at::Tensor entries =
      select_rows(position_, rows.position_index.flatten()).to(at::kFloat).unflatten(0, {-1, taps});
  const at::Tensor positions =
      (entries * rows.position_weight.unsqueeze(-1)).sum(1).to(position_.scalar_type());
  return (x + positions).to(precision.stream);
}

/// `run`, and the tap behind each layer.
LayerRunner Siglip2Tower::tapped(const LayerRunner& run) const {
  if (!tap) return run;
  return [this, run](int64_t layer, const UnitFunction& unit, const std::vector<at::Tensor>& in) {
    const std::vector<at::Tensor> out = run ? run(layer, unit, in) : unit(in);
    const at::Tensor& stream = out.front();
    tap(fmt::format("vision_layer{}.out", layer),
        stream.dim() == 3 ? stream.flatten(0, 1) : stream);
    return out;
  };
}

at::Tensor Siglip2Tower::encode(const at::Tensor& embeddings, const Siglip2Rows& rows,
                                const SiglipPrecision& precision, const Fused& fused,
                                const LayerRunner& run) const {
  const bool windows = rows.window_order.defined();
  const bool rope = rows.rope_cos.defined();
  if (tap) {
    tap("vision.embeddings", windows ? select_rows(embeddings, rows.window_order) : embeddings);
  }
  if (rows.uniform_pictures > 0 && !windows && !rope) {
    const at::Tensor pictures = embeddings.unflatten(0, {rows.uniform_pictures, -1});
    return run_siglip_layers(layers_, post_layernorm_, pictures, precision, fused, tapped(run))
        .flatten(0, 1);
  }
  const auto in_windows = [&](const at::Tensor& x) {
    return windows && x.defined() ? select_rows(x, rows.window_order) : x;
  };
  const at::Tensor cos = in_windows(rows.rope_cos), sin = in_windows(rows.rope_sin);
  const auto whole = std::make_shared<const SiglipRows>(SiglipRows{rows.pictures, cos, sin});
  const auto inside = std::make_shared<const SiglipRows>(SiglipRows{rows.windows, cos, sin});
  const auto rows_of = [&](int64_t layer) {
    const auto& full = sizes_.full_attention;
    const bool sees_all = !windows || std::find(full.begin(), full.end(), layer) != full.end();
    return sees_all ? whole : inside;
  };
  const at::Tensor out = run_siglip_layers(layers_, post_layernorm_, in_windows(embeddings),
                                           precision, fused, tapped(run), rows_of);
  return windows ? select_rows(out, rows.window_back) : out;
}

}  // namespace longship::nn
