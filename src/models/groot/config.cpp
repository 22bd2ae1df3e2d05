#include "models/groot/config.h"

#include <fmt/core.h>

#include "base/error.h"
#include "models/common/dataset_binding.h"
#include "models/groot/embodiment.h"

namespace longship::models {
namespace {

config::Meta positive(std::string_view doc, std::string_view unit = "") {
  return {doc, unit, 1, 1 << 24};
}

/// A switch that may be left to the checkpoint: auto.
void switch_field(config::Visitor& v, std::string_view key, std::optional<bool>& value,
                  const config::Meta& meta) {
  std::string word = !value ? "auto" : *value ? "true" : "false";
  v.choice(key, word, {"auto", "true", "false"}, meta);
  value = word == "auto" ? std::nullopt : std::optional(word == "true");
}

/// The published models.
GrootSizes full_sizes(GrootVersion version) {
  GrootSizes s;
  s.version = version;
  if (version == GrootVersion::kN16) {
    s.vision.full_attention = {7, 14, 21, 26};
    return s;
  }
  s.vision.width = 1024;
  s.vision.depth = 24;
  s.vision.mlp_dim = 4096;
  s.vision.patch_size = 16;
  s.vision.table_side = 48;
  s.vision.deepstack = {5, 11, 17};
  s.text.vocab_size = 151936;
  s.text.theta = 5e6;
  s.text.mrope_sections = {24, 20, 20};
  s.text.image_token = 151655;
  s.vl = GrootStackSizes{.depth = 4, .num_heads = 32, .head_dim = 64};
  s.max_state_dim = s.max_action_dim = 132;
  s.horizon = 40;
  s.state_dropout = 0.2;
  return s;
}

/// For a first try on a CPU: the structure of the published model, small.
GrootSizes demo_sizes(GrootVersion version) {
  GrootSizes s = full_sizes(version);
  s.vision.width = 32;
  s.vision.depth = 2;
  s.vision.num_heads = 4;
  s.vision.mlp_dim = 64;
  s.vision.table_side = 4;
  s.vision.full_attention = {1};
  if (version == GrootVersion::kN17) {
    s.vision.deepstack = {0};
    s.vision.patch_size = 6;  // pictures have at least 64 tokens there: 96 x 96 pixels
  }
  s.text.vocab_size = 1024;
  s.text.image_token = version == GrootVersion::kN17 ? 1 : 2;  // of data/tokenizers/groot_demo.json
  s.text.pad_token = 0;
  s.text.width = 64;
  s.text.depth = 2;
  s.text.mlp_dim = 128;
  s.text.num_heads = 4;
  s.text.num_kv_heads = 2;
  s.text.head_dim = 24;
  if (version == GrootVersion::kN17) s.text.mrope_sections = {4, 4, 4};
  s.dit = {.depth = 4, .num_heads = 4, .head_dim = 16};
  if (s.vl) s.vl = GrootStackSizes{.depth = 1, .num_heads = 4, .head_dim = 16};
  s.max_state_dim = s.max_action_dim = 8;
  s.horizon = 16;
  s.hidden = 64;
  s.position_rows = 64;
  return s;
}

void check_blocks(const GrootStackSizes& blocks, std::string_view key) {
  LS_CHECK(blocks.depth >= 1 && blocks.num_heads >= 1 && blocks.head_dim >= 1, ConfigError,
           "model.{}: {} layers of {} heads of {} dimensions", key, blocks.depth, blocks.num_heads,
           blocks.head_dim);
  LS_CHECK(blocks.dropout >= 0 && blocks.dropout < 1, ConfigError, "model.{}: dropout {}", key,
           blocks.dropout);
}

void check_sizes(const GrootSizes& s) {
  LS_CHECK(s.vision.width % s.vision.num_heads == 0, ConfigError,
           "model.vision_config.width {} is not a multiple of num_heads {}", s.vision.width,
           s.vision.num_heads);
  LS_CHECK(s.text.num_heads % s.text.num_kv_heads == 0, ConfigError,
           "model.text_config.num_kv_heads {} does not divide the {} query heads",
           s.text.num_kv_heads, s.text.num_heads);
  LS_CHECK(s.text.head_dim % 2 == 0, ConfigError,
           "model.text_config.head_dim {} must be even (rotary pairs)", s.text.head_dim);
  int64_t pairs = 0;
  for (const int64_t section : s.text.mrope_sections) pairs += section;
  LS_CHECK(pairs == 0 || pairs == s.text.head_dim / 2, ConfigError,
           "model.text_config: the sections of the rotation have {} pairs, head_dim {} has {}",
           pairs, s.text.head_dim, s.text.head_dim / 2);
  for (const int64_t layer : s.vision.deepstack) {
    LS_CHECK(layer >= 0 && layer < s.vision.depth, ConfigError,
             "model.vision_config: a deepstack tap behind layer {}, the tower has {}", layer,
             s.vision.depth);
  }
  LS_CHECK(s.vision.deepstack.size() <= static_cast<size_t>(s.text.depth), ConfigError,
           "model.vision_config: {} deepstack taps for {} text layers", s.vision.deepstack.size(),
           s.text.depth);
  check_blocks(s.dit, "head_config");
  if (s.vl) {
    check_blocks(*s.vl, "head_config (self-attention)");
    LS_CHECK(s.vl->width() == s.text.width, ConfigError,
             "model.head_config: the self-attention over the backbone's rows is {} wide, these {}",
             s.vl->width(), s.text.width);
  }
  LS_CHECK(s.horizon < s.position_rows, ConfigError,
           "model.action_horizon {} needs more than the {} position rows", s.horizon,
           s.position_rows);
}

}  // namespace

void GrootVisionOverrides::reflect(config::Visitor& v) {
  v.field("width", width, positive("width of the vision tower"));
  v.field("depth", depth, positive("layers of the vision tower"));
  v.field("num_heads", num_heads, positive("heads; must divide width"));
  v.field("mlp_dim", mlp_dim, positive("hidden width of the vision MLP"));
  v.field("patch_size", patch_size, positive("side of a patch", "pixels"));
  v.field("table_side", table_side, positive("side of the square position table", "patches"));
}

void GrootTextOverrides::reflect(config::Visitor& v) {
  v.field("width", width, positive("width of the language layers"));
  v.field("depth", depth, positive("language layers that are kept (select_layer)"));
  v.field("mlp_dim", mlp_dim, positive("hidden width of the gated MLP"));
  v.field("num_heads", num_heads, positive("query heads"));
  v.field("num_kv_heads", num_kv_heads, positive("key-value heads; must divide num_heads"));
  v.field("head_dim", head_dim, positive("head dimension; even"));
  v.field("vocab_size", vocab_size, positive("rows of the token embedding"));
}

void GrootHeadOverrides::reflect(config::Visitor& v) {
  v.field("hidden", hidden, positive("hidden width of the category-specific layers"));
  v.field("depth", depth, positive("blocks of the diffusion transformer"));
  v.field("num_heads", num_heads, positive("heads of the diffusion transformer"));
  v.field("head_dim", head_dim, positive("head dimension; heads times this is its width"));
  v.field("vl_depth", vl_depth,
          positive("N1.7: self-attention layers over the backbone's rows in front of it"));
}

GrootConfig::GrootConfig(GrootVersion v) : version(v) {
  family = is_n17() ? "groot_n17" : "groot_n16";
  if (!is_n17()) tune_top_llm_layers = 4;
}

void GrootConfig::reflect(config::Visitor& v) {
  is_recipe_ = true;
  v.field("family", family, {"model family: groot_n16 or groot_n17"});
  v.choice("size", size, {"demo", "full"},
           {"named sizes that the fields below override; full is the public checkpoint's"});
  v.field("checkpoint", checkpoint,
          {"weights to start from: a safetensors file or a folder; null: random initialisation"});
  v.field("tokenizer", tokenizer, {"tokenizer.json of the backbone; null: beside the checkpoint"});
  v.choice("parity", parity, {"isaac", "loongforge"},
           {"N1.7: whether the head reads the last text layer before its final norm (isaac, as the "
            "public checkpoint was trained) or behind it (loongforge)"});
  v.field("embodiment", embodiment,
          {"embodiment tag: chooses the slot of the category-specific layers"});
  v.choice("train_slots", train_slots, {"used", "all"},
           {"slots of the category-specific layers that are trained: used, those of this run's "
            "datasets; or all, as the references do, which costs gradients and moments of slots "
            "that only decay. A checkpoint holds all slots either way"});
  v.field("modality", modality,
          {"modality.json: groups of state and actions; null: as the checkpoint's "
           "processor_config.json describes the embodiment, else the dataset's own file, else one "
           "group each"});
  v.choice("statistics", statistics, {"dataset", "checkpoint"},
           {"whose statistics normalise: the dataset's own, or those of the embodiment in the "
            "checkpoint's statistics.json"});
  v.field("tune_llm", tune_llm, {"train all text layers"});
  v.field("tune_visual", tune_visual, {"train the vision tower and its projector"});
  v.field(
      "tune_top_llm_layers", tune_top_llm_layers,
      {"train the last text layers, as many as this; more than there are: all", "layers", 0, 1024});
  v.field("tune_projector", tune_projector,
          {"train the state and action encoders and the action decoder"});
  v.field("tune_diffusion_model", tune_diffusion, {"train the diffusion transformer"});
  v.field("tune_vlln", tune_vlln,
          {"train the norm and the self-attention over the backbone's rows"});
  v.field("freeze", freeze, {"further parameters to freeze: name patterns with * and ?"});
  v.field("action_dim", action_dim, {"real action dimensions; 0: the dataset's", "", 0, 4096});
  v.field("state_dim", state_dim, {"real state dimensions; 0: the dataset's", "", 0, 4096});
  v.field("max_action_dim", max_action_dim, positive("padded action dimensions; null: the size's"));
  v.field("max_state_dim", max_state_dim, positive("padded state dimensions; null: the size's"));
  v.field("action_horizon", action_horizon,
          positive("rows of the model's action chunk; null: the size's"));
  v.field("state_dropout_prob", state_dropout_prob,
          {"probability that the head leaves a training sample's state out; null: the size's", "",
           0, 1});
  v.field("dropout", dropout, {"the action head's dropout in training"});
  v.field("bf16_inputs", bf16_inputs,
          {"N1.6 with train.dtype bf16: state, actions, noise and time are rounded to bf16, as its "
           "reference does, so that late times share buckets"});
  v.section("vision_config", vision, "overrides of the vision tower's sizes");
  v.section("text_config", text, "overrides of the language layers' sizes");
  v.section("head_config", head, "overrides of the action head's sizes");
  v.field("shortest_edge", shortest_edge,
          {"pictures are resized so that their shorter side has this", "pixels", 1, 16384});
  v.field("crop_fraction", crop_fraction, {"share of a side that a crop keeps", "", 0.01, 1});
  v.field("letterbox", letterbox, {"black borders make pictures square first, as Isaac does"});
  v.field("color_jitter", color_jitter, {"brightness, contrast, saturation and hue in training"});
  switch_field(
      v, "use_percentiles", use_percentiles,
      {"normalise by the 1st and 99th percentile in place of minimum and maximum; auto: as "
       "processor_config.json of the checkpoint, else false"});
  switch_field(v, "clip_outliers", clip_outliers,
               {"clip normalised numbers to [-1, 1]; auto: as "
                "processor_config.json of the checkpoint, else true"});
  switch_field(v, "relative_actions", relative_actions,
               {"groups that the modality calls relative are learned relative to the state; auto: "
                "as processor_config.json of the checkpoint, else false"});
  v.field("mean_std_groups", mean_std_groups,
          {"groups that are normalised by mean and deviation; []: as the checkpoint that describes "
           "the groups, else none"});
  v.field("sincos_state_groups", sincos_state_groups,
          {"groups of the state that are given as sine and cosine; []: as the checkpoint that "
           "describes the groups, else none"});
  v.field("state_input_dropout", state_input_dropout,
          {"probability that the data transform zeroes a training sample's state", "", 0, 1});
  v.field("state_feature", state_feature, {"dataset column of the state"});
  v.field("action_feature", action_feature, {"dataset column of the actions"});
  v.field("token_limit", token_limit,
          positive("most tokens of a sample, placeholders of pictures included", "tokens"));
  v.field("num_inference_steps", num_inference_steps,
          {"Euler steps of sampling", "steps", 1, 10000});
}

GrootSizes GrootConfig::sizes() const {
  GrootSizes s = imported ? *imported : size == "full" ? full_sizes(version) : demo_sizes(version);
  const auto set = [](auto& value, const auto& over) { value = over.value_or(value); };
  set(s.vision.width, vision.width);
  set(s.vision.depth, vision.depth);
  set(s.vision.num_heads, vision.num_heads);
  set(s.vision.mlp_dim, vision.mlp_dim);
  set(s.vision.patch_size, vision.patch_size);
  set(s.vision.table_side, vision.table_side);
  set(s.text.width, text.width);
  set(s.text.depth, text.depth);
  set(s.text.mlp_dim, text.mlp_dim);
  set(s.text.num_heads, text.num_heads);
  set(s.text.num_kv_heads, text.num_kv_heads);
  set(s.text.head_dim, text.head_dim);
  set(s.text.vocab_size, text.vocab_size);
  set(s.hidden, head.hidden);
  set(s.dit.depth, head.depth);
  set(s.dit.num_heads, head.num_heads);
  set(s.dit.head_dim, head.head_dim);
  if (s.vl) set(s.vl->depth, head.vl_depth);
  set(s.max_action_dim, max_action_dim);
  set(s.max_state_dim, max_state_dim);
  set(s.horizon, action_horizon);
  set(s.state_dropout, state_dropout_prob);
  s.inference_steps = num_inference_steps;
  check_sizes(s);
  return s;
}

void GrootConfig::bind_dataset(const data::Dataset& dataset) {
  bind_dimension(dataset, action_feature, "action_dim", action_dim);
  bind_dimension(dataset, state_feature, "state_dim", state_dim);
  bound_slots_ = groot_dataset_slots(*this, dataset);
}

std::vector<int64_t> GrootConfig::trained_slots() const {
  if (train_slots == "all") return {};
  if (!bound_slots_.empty() || !is_recipe_) return bound_slots_;
  return {groot_embodiment(*this).slot};
}

std::string GrootConfig::random_frozen_inputs() const {
  std::string out;
  if (crop_fraction < 1) out = "model.crop_fraction (crops at random places)";
  if (color_jitter) out += std::string(out.empty() ? "" : " and ") + "model.color_jitter";
  return out;
}

void GrootConfig::check() const {
  const GrootSizes s = sizes();
  LS_CHECK(family == (is_n17() ? "groot_n17" : "groot_n16"), ConfigError,
           "model.family is '{}'; this is the configuration of '{}'", family,
           is_n17() ? "groot_n17" : "groot_n16");
  LS_CHECK(action_dim <= s.max_action_dim, DataError,
           "the data has {} action dimensions but model.max_action_dim is {}; raise it (a new "
           "width makes the action layers of a public checkpoint unusable)",
           action_dim, s.max_action_dim);
  LS_CHECK(state_dim <= s.max_state_dim, DataError,
           "the data has {} state dimensions but model.max_state_dim is {}; raise it", state_dim,
           s.max_state_dim);
  LS_CHECK(data.horizon >= 1 && data.horizon <= s.horizon, ConfigError,
           "data.horizon is {}; the model's action chunk has {} rows (model.action_horizon)",
           data.horizon, s.horizon);
}

std::filesystem::path groot_checkpoint_folder(const GrootConfig& config) {
  if (!config.checkpoint) return {};
  const std::filesystem::path path = *config.checkpoint;
  if (std::filesystem::is_directory(path)) return path;
  return path.has_parent_path() ? path.parent_path() : ".";
}

std::filesystem::path groot_description_folder(const GrootConfig& config) {
  return config.data.own_checkpoint.empty() ? groot_checkpoint_folder(config)
                                            : config.data.own_checkpoint;
}

}  // namespace longship::models
