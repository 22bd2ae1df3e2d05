#include "models/pi05/cost.h"

namespace longship::models {
namespace {

double d(int64_t value) {
  return static_cast<double>(value);
}

double vision_flops(const Pi05Sizes& s, double images) {
  const auto& v = s.vision;
  const double tokens = d(v.num_tokens()), width = d(v.width);
  const double layer =
      2 * tokens * (4 * width * width + 2 * width * d(v.mlp_dim)) + 4 * tokens * tokens * width;
  const double patch = 2 * tokens * 3 * d(v.patch_size * v.patch_size) * width;
  return images * (d(v.depth) * layer + patch + 2 * tokens * width * d(s.width));
}

/// Weights of one Gemma layer: query and output, key and value, MLP.
struct LayerWeights {
  double query_out, key_value, mlp;
};
LayerWeights layer_weights(const Pi05Sizes& s, int64_t width, int64_t mlp_dim) {
  const double w = d(width);
  return {2 * w * d(Pi05Sizes::kNumHeads * s.head_dim), 2 * w * d(s.num_kv_heads * s.head_dim),
          3 * w * d(mlp_dim)};
}

double expert_flops(const Pi05Config& config, const Pi05Sizes& s) {
  const LayerWeights weights = layer_weights(s, s.expert_width, s.expert_mlp_dim);
  const double w = d(s.expert_width), horizon = d(config.horizon());
  const double tokens = horizon + (config.is_pi05() ? 0 : 1);
  double out = 2 * tokens * d(s.depth) * (weights.query_out + weights.key_value + weights.mlp);
  out += 2 * horizon * 2 * w * d(s.max_action_dim);
  if (config.is_pi05()) {
    out += 2 * 2 * w * w + 2 * d(2 * s.depth + 1) * 3 * w * w;
  } else {
    out += 2 * horizon * (2 * w * w + w * w) + 2 * d(s.max_state_dim) * w;
  }
  return out;
}

}  // namespace

Pi05Flops pi05_forward_flops(const Pi05Config& config, int64_t num_images, int64_t num_text) {
  const Pi05Sizes s = config.sizes();
  const LayerWeights weights = layer_weights(s, s.width, s.mlp_dim);
  const double prefix = d(num_images * s.vision.num_tokens() + num_text);
  const double suffix = d(config.horizon()) + (config.is_pi05() ? 0 : 1);
  const double heads = d(Pi05Sizes::kNumHeads * s.head_dim), depth = d(s.depth);
  Pi05Flops out;
  out.vision = vision_flops(s, d(num_images));
  out.prefix =
      2 * prefix * (depth * weights.key_value + (depth - 1) * (weights.query_out + weights.mlp));
  out.expert = expert_flops(config, s);
  out.attention = 4 * heads * ((depth - 1) * prefix * prefix + depth * suffix * (prefix + suffix));
  return out;
}

Pi05Flops pi05_reference_flops(const Pi05Config& config, int64_t slots) {
  const Pi05Sizes s = config.sizes();
  const LayerWeights weights = layer_weights(s, s.width, s.mlp_dim);
  const double prefix = d(slots * s.vision.num_tokens() + s.token_limit);
  const double all = prefix + d(config.horizon()) + (config.is_pi05() ? 0 : 1);
  const double depth = d(s.depth);
  Pi05Flops out;
  out.vision = vision_flops(s, d(slots));
  out.prefix = 2 * prefix * depth * (weights.key_value + weights.query_out + weights.mlp);
  out.expert = expert_flops(config, s);
  out.attention = 4 * depth * d(Pi05Sizes::kNumHeads * s.head_dim) * all * all;
  return out;
}

}  // namespace longship::models
