#include "models/pi05/model.h"

#include <fmt/core.h>

#include <cmath>

#include "base/error.h"
#include "models/common/parameter_patterns.h"
#include "models/common/strict_weights.h"
#include "models/pi05/plan.h"
#include "nn/init.h"
#include "nn/packed_attention.h"

namespace longship::models {
namespace {

constexpr std::string_view kPaligemma = "paligemma_with_expert.paligemma.";
constexpr std::string_view kExpert = "paligemma_with_expert.gemma_expert.model.";

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

GemmaLayerSizes prefix_layer_sizes(const Pi05Sizes& s) {
  return {s.width, s.mlp_dim, Pi05Sizes::kNumHeads, s.num_kv_heads, s.head_dim, s.norm_eps};
}

GemmaLayerSizes expert_layer_sizes(const Pi05Sizes& s) {
  return {s.expert_width, s.expert_mlp_dim, Pi05Sizes::kNumHeads,
          s.num_kv_heads, s.head_dim,       s.norm_eps};
}

// Why the whole model goes without flash kernels, "" where it need not: packed rows and their
// tables are for all of its attention or none.
std::string flash_obstacle(const Pi05Config& config, at::ScalarType dtype) {
  const Pi05Sizes s = config.sizes();
  if (!config.is_pi05()) return "the state token of pi0 needs a mask";
  const std::string layers = nn::flash_refusal(s.head_dim, dtype);
  if (!layers.empty()) return layers;
  const std::string vision = nn::flash_refusal(s.vision.width / s.vision.num_heads, dtype);
  return vision.empty() ? vision : "the vision tower: " + vision;
}

}  // namespace

std::vector<LostKernel> pi05_lost_kernels(const Pi05Config& config, const nn::Fused& asked,
                                          at::ScalarType dtype) {
  const Pi05Precision precision = pi05_precision(config, dtype);
  std::vector<LostKernel> out;
  if (const std::string why = flash_obstacle(config, dtype); asked.attention && !why.empty()) {
    out.push_back({"perf.flash_attention", why});
  }
  // The fused rotation works in fp32; rope_dtype 'model' repeats the references' rounding.
  if (asked.rope && precision.rope != at::kFloat) {
    out.push_back({"perf.fused_rope",
                   "model.rope_dtype model rotates in the model's dtype, the "
                   "kernel in fp32"});
  }
  if (precision.vision.gemm != precision.vision.stream) {
    const std::string why =
        "the vision tower: model.parity loongforge keeps fp32 around its products in bf16";
    if (asked.norms) out.push_back({"perf.fused_norms", why});
    if (asked.activations) out.push_back({"perf.fused_activations", why});
    if (asked.stacked) out.push_back({"perf.stacked_linears", why});
    if (asked.attention && flash_obstacle(config, dtype).empty()) {
      out.push_back({"perf.flash_attention", why});
    }
  }
  if (asked.loss && config.says_dims()) {
    out.push_back({"perf.fused_loss",
                   "the datasets have different action dimensions, the kernel "
                   "takes one number of them"});
  }
  return out;
}

Pi05Precision pi05_precision(const Pi05Config& config, at::ScalarType dtype) {
  Pi05Precision p;
  if (dtype == at::kDouble)
    return {{at::kDouble, at::kDouble}, at::kDouble, at::kDouble, at::kDouble};
  if (dtype == at::kFloat) return p;
  const bool loongforge = config.parity == "loongforge";
  p.vision = {dtype, loongforge ? at::kFloat : dtype};
  p.stream = dtype;
  p.heads = loongforge ? dtype : at::kFloat;
  p.rope = config.rope_dtype == "model" ? dtype : at::kFloat;
  return p;
}

at::ScalarType pi05_parameter_dtype(const Pi05Config& config, at::ScalarType dtype,
                                    std::string_view name) {
  if (dtype == at::kFloat || dtype == at::kDouble) return dtype;
  for (const std::string_view part : {"patch_embedding", "position_embedding", "input_layernorm",
                                      "post_attention_layernorm", "model.norm"}) {
    if (contains(name, part)) return at::kFloat;
  }
  if (!name.starts_with("paligemma_with_expert.")) return at::kFloat;  // heads and time MLP
  const bool vision = contains(name, "vision_tower") || contains(name, "multi_modal_projector");
  return vision && config.parity == "loongforge" ? at::kFloat : dtype;
}

Pi05Model::Pi05Model(const Pi05Config& config, const BuildOptions& options)
    : config_(config),
      sizes_(config.sizes()),
      dtype_(options.dtype),
      precision_(pi05_precision(config, options.dtype)),
      fused_(options.fused),
      token_bucket_(options.token_bucket),
      pad_text_(options.pad_text),
      vision_(sizes_.vision),
      projector_(sizes_.vision.width, sizes_.width, true),
      prefix_norm_(sizes_.width, sizes_.norm_eps, false),
      expert_norm_(sizes_.expert_width, sizes_.norm_eps, config.is_pi05()),
      action_in_(sizes_.max_action_dim, sizes_.expert_width, true),
      action_out_(sizes_.expert_width, sizes_.max_action_dim, true) {
  const int64_t width = sizes_.expert_width;
  for (int64_t l = 0; l < sizes_.depth; ++l) {
    prefix_layers_.push_back(std::make_unique<GemmaLayer>(prefix_layer_sizes(sizes_), false));
    expert_layers_.push_back(
        std::make_unique<GemmaLayer>(expert_layer_sizes(sizes_), config.is_pi05()));
  }
  if (config.is_pi05()) {
    time_in_ = std::make_unique<nn::Linear>(width, width, true);
    time_out_ = std::make_unique<nn::Linear>(width, width, true);
  } else {
    state_proj_ = std::make_unique<nn::Linear>(sizes_.max_state_dim, width, true);
    action_time_in_ = std::make_unique<nn::Linear>(2 * width, width, true);
    action_time_out_ = std::make_unique<nn::Linear>(width, width, true);
  }
  warn_lost_kernels(options.device, pi05_lost_kernels(config, options.fused, dtype_));
  fused_.attention = fused_.attention && flash_obstacle(config, dtype_).empty();
  if (options.fp8) fp8_ = std::make_unique<nn::Fp8Layers>(*options.fp8);
  fused_.rope = fused_.rope && precision_.rope == at::kFloat;
  register_all();
  allocate(at::kMeta);
  choose_recomputed(options.recompute);
  name_units();
}

void Pi05Model::choose_recomputed(const std::vector<std::string>& patterns) {
  recompute_vision_.assign(static_cast<size_t>(sizes_.vision.depth), false);
  recompute_prefix_.assign(static_cast<size_t>(sizes_.depth), false);
  for (const std::string& pattern : patterns) {
    bool matched = false;
    const auto choose = [&](const char* kind, std::vector<bool>& flags) {
      for (size_t l = 0; l < flags.size(); ++l) {
        const bool hit = pattern == "full" || (pattern == "vit" && kind[0] == 'v') ||
                         matches_parameter(pattern, fmt::format("{}.{}", kind, l));
        if (hit) flags[l] = true;
        matched = matched || hit;
      }
    };
    choose("vision", recompute_vision_);
    choose("joint", recompute_prefix_);
    LS_CHECK(matched, ConfigError,
             "train.recompute: '{}' matches no unit; use none, vit, full, or patterns over "
             "'vision.0' .. 'vision.{}' and 'joint.0' .. 'joint.{}'",
             pattern, sizes_.vision.depth - 1, sizes_.depth - 1);
  }
  recompute_expert_ = recompute_prefix_;  // both streams of a joint layer
}

void Pi05Model::name_units() {
  for (int64_t l = 0; l < sizes_.vision.depth; ++l) vision_units_.push_back(pi05_vision_unit(l));
  for (int64_t l = 0; l < sizes_.depth; ++l) {
    prefix_units_.push_back(pi05_prefix_unit(l));
    expert_units_.push_back(pi05_expert_unit(l));
  }
}

void Pi05Model::keep_activations(const std::function<bool(std::string_view unit)>& forward_only) {
  const auto keep = [&](const std::vector<std::string>& units, std::vector<bool>& flags) {
    for (size_t l = 0; l < flags.size(); ++l) flags[l] = flags[l] && !forward_only(units[l]);
  };
  keep(vision_units_, recompute_vision_);
  keep(prefix_units_, recompute_prefix_);
  keep(expert_units_, recompute_expert_);
}

void Pi05Model::register_all() {
  register_child(fmt::format("{}model.vision_tower", kPaligemma), vision_);
  register_child(fmt::format("{}model.multi_modal_projector.linear", kPaligemma), projector_);
  for (size_t l = 0; l < prefix_layers_.size(); ++l) {
    register_child(fmt::format("{}model.language_model.layers.{}", kPaligemma, l),
                   *prefix_layers_[l]);
  }
  register_child(fmt::format("{}model.language_model.norm", kPaligemma), prefix_norm_);
  register_parameter(fmt::format("{}lm_head.weight", kPaligemma), embedding_,
                     {sizes_.vocab_size, sizes_.width});
  for (size_t l = 0; l < expert_layers_.size(); ++l) {
    register_child(fmt::format("{}layers.{}", kExpert, l), *expert_layers_[l]);
  }
  register_child(fmt::format("{}norm", kExpert), expert_norm_);
  if (config_.is_pi05()) {  // one product gives every modulation of a step
    std::vector<at::Tensor*> weights, biases;
    const auto add = [&](GemmaNorm& norm) {
      weights.push_back(&norm.dense->weight);
      biases.push_back(&norm.dense->bias);
    };
    for (const auto& layer : expert_layers_) {
      add(layer->input_layernorm);
      add(layer->post_attention_layernorm);
    }
    add(expert_norm_);
    register_stack(std::move(weights));
    register_stack(std::move(biases));
  }
  register_child("action_in_proj", action_in_);
  register_child("action_out_proj", action_out_);
  if (time_in_) {
    register_child("time_mlp_in", *time_in_);
    register_child("time_mlp_out", *time_out_);
  } else {
    register_child("state_proj", *state_proj_);
    register_child("action_time_mlp_in", *action_time_in_);
    register_child("action_time_mlp_out", *action_time_out_);
  }
}

void Pi05Model::allocate(at::Device device, bool memory) {
  materialise(
      device, [&](std::string_view name) { return pi05_parameter_dtype(config_, dtype_, name); },
      memory);
  LS_CHECK(memory || !fp8_, ConfigError,
           "train.fp8 does not work with sharded weights; use parallel.strategy ddp or zero1");
  if (fp8_ && device.type() != at::kMeta) use_fp8(device);
}

// The last prefix layer, the expert and the heads stay in the model's dtype: their products are
// small.
void Pi05Model::use_fp8(at::Device device) {
  LS_CHECK(precision_.vision.stream == precision_.stream, ConfigError,
           "train.fp8 works with model.parity openpi: loongforge keeps the vision tower in fp32");
  for (size_t l = 0; l + 1 < prefix_layers_.size(); ++l) {
    GemmaLayer& layer = *prefix_layers_[l];
    GemmaAttention& attention = layer.self_attn;
    const auto name = [&](const char* part) { return fmt::format("prefix.{}.{}", l, part); };
    attention.fp8_qkv = fp8_->linear(
        name("qkv"), {attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight});
    attention.fp8_out = fp8_->linear(name("out"), {attention.o_proj.weight});
    layer.mlp.fp8 = fp8_->gated_mlp(name("mlp"), layer.mlp.gate_proj.weight,
                                    layer.mlp.up_proj.weight, layer.mlp.down_proj.weight);
  }
  vision_.use_fp8(*fp8_, "vision");
  fp8_->create(device);
}

void Pi05Model::initialise(uint64_t seed, const PreciseSink& sink) {
  initialise_parameters(*this, sink, [&](const std::string& name, at::Tensor& parameter) {
    initialise_parameter(name, parameter, seed);
  });
}

void Pi05Model::initialise_parameter(const std::string& name, at::Tensor& parameter,
                                     uint64_t seed) const {
  const Pi05Init& init = config_.init;
  const auto normal = [&](double std) { nn::init_normal(parameter, name, seed, std); };
  if (name.ends_with(".dense.bias")) {
    nn::init_constant(parameter, 0);
    at::Tensor gate = parameter.narrow(0, parameter.size(0) / 3 * 2, parameter.size(0) / 3);
    return nn::init_constant(gate, init.gate);
  }
  if (name.ends_with(".dense.weight")) return normal(init.modulation);
  if (name.ends_with("position_embedding.weight")) return normal(init.position);
  if (name.ends_with("lm_head.weight")) {
    return normal(init.embedding / std::sqrt(static_cast<double>(sizes_.width)));
  }
  if (name.ends_with("bias")) return nn::init_constant(parameter, 0);
  if (parameter.dim() ==
      1) {  // LayerNorm weights multiply, Gemma norm weights are offsets from one
    return nn::init_constant(parameter, contains(name, "vision_tower") ? 1 : 0);
  }
  const int64_t fan_in = parameter.numel() / parameter.size(0);
  double std = init.gain / std::sqrt(static_cast<double>(fan_in));
  if (name == "action_out_proj.weight") std *= init.action_out;
  const bool ends_branch = contains(name, ".out_proj.") || contains(name, ".fc2.") ||
                           contains(name, ".o_proj.") || contains(name, ".down_proj.");
  if (ends_branch) {
    const int64_t depth = contains(name, "vision_tower") ? sizes_.vision.depth : sizes_.depth;
    std *= init.residual_gain / std::sqrt(2.0 * static_cast<double>(depth));
  }
  normal(std);
}

}  // namespace longship::models
