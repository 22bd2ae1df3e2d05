#include "models/pi05/config.h"

#include <fmt/core.h>

#include "base/error.h"
#include "models/common/dataset_binding.h"

namespace longship::models {
namespace {

config::Meta positive(std::string_view doc, std::string_view unit = "") {
  return {doc, unit, 1, 1 << 24};
}

Pi05Sizes tiny_sizes() {
  Pi05Sizes s;
  s.vision = {
      .image_size = 21, .patch_size = 7, .width = 24, .depth = 3, .num_heads = 3, .mlp_dim = 34};
  s.width = 36;
  s.mlp_dim = 58;
  s.expert_width = 20;
  s.expert_mlp_dim = 38;
  s.depth = 3;
  s.num_kv_heads = 2;
  s.head_dim = 6;
  s.vocab_size = 101;
  s.max_action_dim = 12;
  s.max_state_dim = 12;
  s.token_limit = 11;
  return s;
}

Pi05Sizes demo_sizes() {
  Pi05Sizes s;
  s.vision = {
      .image_size = 96, .patch_size = 16, .width = 64, .depth = 1, .num_heads = 4, .mlp_dim = 128};
  s.width = 64;
  s.mlp_dim = 128;
  s.expert_width = 64;
  s.expert_mlp_dim = 128;
  s.depth = 3;
  s.num_kv_heads = 1;
  s.head_dim = 24;
  s.vocab_size = 800;
  s.max_action_dim = 8;
  s.max_state_dim = 8;
  return s;
}

}  // namespace

void Pi05VisionOverrides::reflect(config::Visitor& v) {
  v.field("image_size", image_size, positive("side of the square pictures", "pixels"));
  v.field("patch_size", patch_size, positive("side of a patch; stride equals it", "pixels"));
  v.field("hidden_size", hidden_size, positive("width of the vision tower"));
  v.field("num_hidden_layers", num_hidden_layers, positive("layers of the vision tower"));
  v.field("num_attention_heads", num_attention_heads, positive("heads; must divide hidden_size"));
  v.field("intermediate_size", intermediate_size, positive("hidden width of the vision MLP"));
  v.field("layer_norm_eps", layer_norm_eps, {"epsilon of the vision tower's LayerNorms", "", 0, 1});
}

void Pi05TextOverrides::reflect(config::Visitor& v) {
  v.field("width", width, positive("width of the prefix Gemma"));
  v.field("depth", depth, positive("layers of both streams"));
  v.field("mlp_dim", mlp_dim, positive("hidden width of the gated MLP"));
  v.field("num_kv_heads", num_kv_heads,
          {"key-value heads of both streams; must divide the 8 query heads", "", 1, 8});
  v.field("head_dim", head_dim, positive("head dimension of both streams; even"));
  v.field("vocab_size", vocab_size, positive("rows of the token embedding"));
  v.field("rms_norm_eps", rms_norm_eps, {"epsilon of the RMS norms of both streams", "", 0, 1});
  v.field("rope_theta", rope_theta, {"base of the rotary embedding of both streams", "", 1, 1e12});
}

void Pi05ExpertOverrides::reflect(config::Visitor& v) {
  v.field("width", width, positive("width of the action expert; even"));
  v.field("mlp_dim", mlp_dim, positive("hidden width of the expert's gated MLP"));
}

void Pi05Init::reflect(config::Visitor& v) {
  v.field("gain", gain, {"linear weights: standard deviation gain / sqrt(fan_in)", "", 0, 100});
  v.field("residual_gain", residual_gain,
          {"extra factor of projections that end a residual branch, beside 1 / sqrt(2 depth)", "",
           0, 100});
  v.field("embedding", embedding,
          {"token embedding: standard deviation value / sqrt(width)", "", 0, 100});
  v.field("position", position, {"vision position table: standard deviation", "", 0, 100});
  v.field("modulation", modulation, {"adaRMS dense weights: standard deviation", "", 0, 100});
  v.field("gate", gate,
          {"adaRMS gate bias; 0 closes every residual branch of the expert", "", -100, 100});
  v.field("action_out", action_out,
          {"action_out_proj: standard deviation value / sqrt(fan_in)", "", 0, 100});
}

Pi05Config::Pi05Config() {
  family = "pi05";
}

void Pi05Config::reflect(config::Visitor& v) {
  v.field("family", family, {"model family: pi05 (Pi0 and Pi0.5)"});
  v.choice("variant", variant, {"pi05", "pi0"},
           {"pi05: state digits in the prompt and adaRMS; pi0: state token, plain norms"});
  v.choice("size", size, {"tiny", "demo", "full"},
           {"named sizes that the fields below override; full is the public checkpoint's"});
  v.field("checkpoint", checkpoint,
          {"weights to start from: a safetensors file or a folder; null: random initialisation"});
  v.field("tokenizer", tokenizer,
          {"SentencePiece model; null: tokenizer.model beside the checkpoint"});
  v.choice("parity", parity, {"openpi", "loongforge"},
           {"whose numerics: openpi averages the loss over all padded action dims, loongforge over "
            "the real ones; also bf16 rounding points and sampling times"});
  v.field("freeze", freeze,
          {"parameters to freeze: vision (the vision tower), expert_only (everything of "
           "PaliGemma), or name patterns with * and ?"});
  v.field("action_dim", action_dim, {"real action dimensions; 0: the dataset's", "", 0, 4096});
  v.field("state_dim", state_dim, {"real state dimensions; 0: the dataset's", "", 0, 4096});
  v.field("max_action_dim", max_action_dim, positive("padded action dimensions; null: the size's"));
  v.field("max_state_dim", max_state_dim, positive("padded state dimensions; null: the size's"));
  v.field("token_limit", token_limit,
          positive("most text tokens of a sample; null: the size's", "tokens"));
  v.section("vision_config", vision,
            "overrides of the vision tower's sizes; null keeps the size's value");
  v.section("paligemma_config", text,
            "overrides of the prefix Gemma's sizes and of what both streams share");
  v.section("action_expert_config", expert, "overrides of the action expert's sizes");
  v.choice("resize", resize, {"openpi_pil", "torch01", "torch11", "torch_u8", "jax11"},
           {"how pictures are resized"});
  v.choice("normalization", normalization, {"auto", "quantiles", "mean_std", "min_max", "identity"},
           {"of state and actions; auto: quantiles for pi05, mean_std for pi0"});
  v.choice("norm_flavour", norm_flavour, {"longship", "openpi", "lerobot", "loongforge"},
           {"whose rule for constant columns and epsilons"});
  v.field("discrete_state", discrete_state, {"pi05: write the state's digits into the prompt"});
  v.field("state_feature", state_feature, {"dataset column of the state"});
  v.field("action_feature", action_feature, {"dataset column of the actions"});
  v.field("num_inference_steps", num_inference_steps,
          {"Euler steps of sampling", "steps", 1, 10000});
  v.field("time_sampling_beta_alpha", time_alpha,
          {"first parameter of the Beta distribution of the flow time", "", 1e-3, 1e3});
  v.field("time_sampling_beta_beta", time_beta,
          {"second parameter of the Beta distribution", "", 1e-3, 1e3});
  v.field("time_sampling_scale", time_scale, {"time = scale * beta + offset", "", 0, 1});
  v.field("time_sampling_offset", time_offset, {"smallest time", "", 0, 1});
  v.field("min_period", min_period, {"shortest period of the time embedding", "", 1e-9, 1e9});
  v.field("max_period", max_period, {"longest period of the time embedding", "", 1e-9, 1e9});
  v.field("mask_action_padding", mask_action_padding,
          {"leave repeated actions behind an episode's end out of the loss; the references train "
           "on them"});
  v.choice(
      "loss_dims", loss_dims, {"auto", "all", "real"},
      {"action dimensions in the loss: all, padded ones included; real, the dataset's own; "
       "auto: as parity says, and real where datasets of a mixture have different dimensions"});
  v.choice("prompt_overflow", prompt_overflow, {"error", "trim_task", "reference"},
           {"a prompt beyond token_limit: error; trim_task shortens the task text at a word; "
            "reference cuts the end off, state digits included, as openpi does"});
  v.choice(
      "rope_dtype", rope_dtype, {"float32", "model"},
      {"arithmetic of the rotary embedding; model repeats the torch references' bf16 rounding"});
  v.section("init", init, "random initialisation of a model without a checkpoint");
}

std::vector<std::string> Pi05Config::slots() const {
  if (data.cameras.empty()) return {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
  std::vector<std::string> names;
  for (const auto& [slot, camera] : data.cameras) names.push_back(slot);
  return names;
}

Pi05Sizes Pi05Config::sizes() const {
  Pi05Sizes s;
  if (size == "tiny") s = tiny_sizes();
  if (size == "demo") s = demo_sizes();
  if (size == "full" && variant == "pi0") s.token_limit = 48;
  const auto set = [](auto& value, const auto& over) { value = over.value_or(value); };
  set(s.vision.image_size, vision.image_size);
  set(s.vision.patch_size, vision.patch_size);
  set(s.vision.width, vision.hidden_size);
  set(s.vision.depth, vision.num_hidden_layers);
  set(s.vision.num_heads, vision.num_attention_heads);
  set(s.vision.mlp_dim, vision.intermediate_size);
  set(s.vision.eps, vision.layer_norm_eps);
  set(s.norm_eps, text.rms_norm_eps);
  set(s.rope_theta, text.rope_theta);
  set(s.width, text.width);
  set(s.depth, text.depth);
  set(s.mlp_dim, text.mlp_dim);
  set(s.num_kv_heads, text.num_kv_heads);
  set(s.head_dim, text.head_dim);
  set(s.vocab_size, text.vocab_size);
  set(s.expert_width, expert.width);
  set(s.expert_mlp_dim, expert.mlp_dim);
  set(s.max_action_dim, max_action_dim);
  set(s.max_state_dim, max_state_dim);
  set(s.token_limit, token_limit);

  LS_CHECK(s.vision.patch_size <= s.vision.image_size, ConfigError,
           "model.vision_config.patch_size {} is larger than image_size {}", s.vision.patch_size,
           s.vision.image_size);
  LS_CHECK(s.vision.width % s.vision.num_heads == 0, ConfigError,
           "model.vision_config.hidden_size {} is not a multiple of num_attention_heads {}",
           s.vision.width, s.vision.num_heads);
  LS_CHECK(
      Pi05Sizes::kNumHeads % s.num_kv_heads == 0, ConfigError,
      "model.paligemma_config.num_kv_heads {} does not divide the {} query heads; use 1, 2, 4 or 8",
      s.num_kv_heads, Pi05Sizes::kNumHeads);
  LS_CHECK(s.head_dim % 2 == 0, ConfigError,
           "model.paligemma_config.head_dim {} must be even (rotary pairs)", s.head_dim);
  LS_CHECK(s.expert_width % 2 == 0, ConfigError,
           "model.action_expert_config.width {} must be even (sine and cosine halves of the time "
           "embedding)",
           s.expert_width);
  return s;
}

void Pi05Config::bind_dataset(const data::Dataset& dataset) {
  bind_dimension(dataset, action_feature, "action_dim", action_dim);
  if (!is_pi05() || discrete_state) bind_dimension(dataset, state_feature, "state_dim", state_dim);
}

void Pi05Config::check() const {
  const Pi05Sizes s = sizes();
  LS_CHECK(family == "pi05", ConfigError,
           "model.family is '{}'; this is the configuration of 'pi05'", family);
  LS_CHECK(action_dim <= s.max_action_dim, DataError,
           "the data has {} action dimensions but model.max_action_dim is {}; raise max_action_dim "
           "(32 is what public "
           "checkpoints have)",
           action_dim, s.max_action_dim);
  LS_CHECK(state_dim <= s.max_state_dim || is_pi05(), DataError,
           "the data has {} state dimensions but model.max_state_dim is {}; raise max_state_dim",
           state_dim, s.max_state_dim);
  LS_CHECK(horizon() >= 1, ConfigError, "data.horizon is {}; it must be at least 1", horizon());
  LS_CHECK(min_period < max_period, ConfigError, "model.min_period {} must be below max_period {}",
           min_period, max_period);
}

}  // namespace longship::models
