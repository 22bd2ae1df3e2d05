// config.json of GR00T under Isaac-GR00T's keys, and the backbone's configuration beside it.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/groot/config.h"

namespace longship::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Reads keys of one object with messages that name file and path.
class Keys {
 public:
  Keys(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    LS_CHECK(object.is_object(), ConfigError, "{}: must be an object", place_);
  }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  Keys child(const char* key) const {
    LS_CHECK(has(key), ConfigError, "{}: key '{}' is missing", place_, key);
    return Keys(object_[key], fmt::format("{}: {}", place_, key));
  }
  /// Reads a key where it is there; of another type it is an error.
  template <class T>
  void read(const char* key, T& value) const {
    if (!has(key)) return;
    try {
      const Json& given = object_[key];
      if constexpr (std::is_same_v<T, int64_t>) {
        LS_CHECK(given.is_number_integer(), ConfigError, "{}: '{}' must be an integer", place_,
                 key);
      }
      value = given.get<T>();
    } catch (const Json::exception& error) {
      throw ConfigError(fmt::format("{}: '{}': {}", place_, key, error.what()));
    }
    if constexpr (std::is_same_v<T, int64_t>) {
      LS_CHECK(value >= 0 && value <= (int64_t{1} << 24), ConfigError, "{}: '{}' is {}", place_,
               key, value);
    }
  }
  const std::string& place() const { return place_; }

 private:
  const Json& object_;
  std::string place_;
};

void read_blocks(const Keys& keys, GrootStackSizes& blocks) {
  keys.read("num_layers", blocks.depth);
  keys.read("num_attention_heads", blocks.num_heads);
  keys.read("attention_head_dim", blocks.head_dim);
  keys.read("dropout", blocks.dropout);
  keys.read("final_dropout", blocks.final_dropout);
}

void read_text(const Keys& keys, GrootTextSizes& text) {
  keys.read("vocab_size", text.vocab_size);
  keys.read("hidden_size", text.width);
  keys.read("intermediate_size", text.mlp_dim);
  keys.read("num_attention_heads", text.num_heads);
  keys.read("num_key_value_heads", text.num_kv_heads);
  keys.read("head_dim", text.head_dim);
  keys.read("rms_norm_eps", text.eps);
  keys.read("rope_theta", text.theta);
  if (!keys.has("rope_scaling")) return;
  std::vector<int64_t> sections;
  keys.child("rope_scaling").read("mrope_section", sections);
  if (sections.empty()) return;
  LS_CHECK(sections.size() == 3, ConfigError, "{}: 'mrope_section' has {} entries, 3 expected",
           keys.place(), sections.size());
  std::copy(sections.begin(), sections.end(), text.mrope_sections.begin());
}

int64_t square_root(int64_t rows, const std::string& place) {
  int64_t side = 1;
  while (side * side < rows) ++side;
  LS_CHECK(side * side == rows, ConfigError, "{}: {} position rows are no square", place, rows);
  return side;
}

void read_vision(const Keys& keys, GrootSizes& s) {
  GrootVisionSizes& vision = s.vision;
  keys.read("hidden_size", vision.width);
  keys.read("intermediate_size", vision.mlp_dim);
  keys.read("patch_size", vision.patch_size);
  int64_t rows = vision.table_side * vision.table_side;
  if (s.version == GrootVersion::kN16) {
    keys.read("num_hidden_layers", vision.depth);
    keys.read("num_attention_heads", vision.num_heads);
    keys.read("layer_norm_eps", vision.eps);
    keys.read("num_patches", rows);
    // The class's own defaults, where the file says nothing.
    vision.rope = vision.windows = true;
    keys.read("use_rope", vision.rope);
    keys.read("use_windows_attn", vision.windows);
    keys.read("window_size", vision.window_size);
    keys.read("full_attention_indexes", vision.full_attention);
  } else {
    keys.read("depth", vision.depth);
    keys.read("num_heads", vision.num_heads);
    keys.read("num_position_embeddings", rows);
    keys.read("temporal_patch_size", vision.frames);
    keys.read("deepstack_visual_indexes", vision.deepstack);
    int64_t merge = GrootSizes::kMerge;
    keys.read("spatial_merge_size", merge);
    LS_CHECK(merge == GrootSizes::kMerge, ConfigError,
             "{}: spatial_merge_size is {}; only {} is supported", keys.place(), merge,
             GrootSizes::kMerge);
  }
  vision.table_side = square_root(rows, keys.place());
}

void read_backbone(const Keys& keys, GrootSizes& s) {
  read_text(keys.child("text_config"), s.text);
  read_vision(keys.child("vision_config"), s);
  keys.read(s.version == GrootVersion::kN16 ? "image_token_index" : "image_token_id",
            s.text.image_token);
}

/// What the file leaves out is what Isaac's configuration classes say, not the published model's.
void class_defaults(GrootSizes& s) {
  if (s.version == GrootVersion::kN16) return;
  s.text.depth = 12;
  s.dit.depth = 16;
  s.state_dropout = 0.8;
  s.vl.reset();
}

void read_head(const Keys& keys, GrootConfig& config, GrootSizes& s) {
  keys.read("select_layer", s.text.depth);
  keys.read("max_state_dim", s.max_state_dim);
  keys.read("max_action_dim", s.max_action_dim);
  keys.read("action_horizon", s.horizon);
  keys.read("hidden_size", s.hidden);
  keys.read("max_num_embodiments", s.embodiments);
  keys.read("add_pos_embed", s.add_positions);
  keys.read("max_seq_len", s.position_rows);
  keys.read("use_vlln", s.vlln);
  keys.read("use_alternate_vl_dit", s.alternate_vl);
  keys.read("attend_text_every_n_blocks", s.text_every);
  keys.read("state_history_length", s.state_history);
  keys.read("state_dropout_prob", s.state_dropout);
  keys.read("noise_beta_alpha", s.beta_alpha);
  keys.read("noise_beta_beta", s.beta_beta);
  keys.read("noise_s", s.noise_s);
  keys.read("num_timestep_buckets", s.time_buckets);
  keys.read("num_inference_timesteps", config.num_inference_steps);
  if (keys.has("diffusion_model_cfg")) {
    const Keys dit = keys.child("diffusion_model_cfg");
    read_blocks(dit, s.dit);
    dit.read("interleave_self_attention", s.interleave_self);
    int64_t out = s.hidden;
    dit.read("output_dim", out);
    LS_CHECK(out == s.hidden, ConfigError, "{}: output_dim is {}, hidden_size {}", dit.place(), out,
             s.hidden);
  }
  int64_t width = s.dit.width();
  keys.read("input_embedding_dim", width);
  LS_CHECK(width == s.dit.width(), ConfigError,
           "{}: input_embedding_dim is {}, but the diffusion transformer has {} heads of {}",
           keys.place(), width, s.dit.num_heads, s.dit.head_dim);
  bool has_vl = keys.has("vl_self_attention_cfg");
  keys.read("use_vl_self_attention", has_vl);
  if (s.version == GrootVersion::kN17 && has_vl) {
    GrootStackSizes vl{.depth = 4, .num_heads = 32, .head_dim = 64};
    if (keys.has("vl_self_attention_cfg")) read_blocks(keys.child("vl_self_attention_cfg"), vl);
    s.vl = vl;
  }
}

Json blocks_json(const GrootStackSizes& blocks) {
  return {{"num_layers", blocks.depth},
          {"num_attention_heads", blocks.num_heads},
          {"attention_head_dim", blocks.head_dim},
          {"dropout", blocks.dropout},
          {"final_dropout", blocks.final_dropout},
          {"positional_embeddings", nullptr}};
}

/// Under the keys that read_backbone() reads.
Json backbone_json(const GrootSizes& s) {
  const int64_t rows = s.vision.table_side * s.vision.table_side;
  Json text = {{"vocab_size", s.text.vocab_size},
               {"hidden_size", s.text.width},
               {"intermediate_size", s.text.mlp_dim},
               {"num_attention_heads", s.text.num_heads},
               {"num_key_value_heads", s.text.num_kv_heads},
               {"head_dim", s.text.head_dim},
               {"rms_norm_eps", s.text.eps},
               {"rope_theta", s.text.theta}};
  Json vision = {{"hidden_size", s.vision.width},
                 {"intermediate_size", s.vision.mlp_dim},
                 {"patch_size", s.vision.patch_size}};
  if (s.version == GrootVersion::kN16) {
    vision["num_hidden_layers"] = s.vision.depth;
    vision["num_attention_heads"] = s.vision.num_heads;
    vision["layer_norm_eps"] = s.vision.eps;
    vision["num_patches"] = rows;
    vision["use_rope"] = s.vision.rope;
    vision["use_windows_attn"] = s.vision.windows;
    vision["window_size"] = s.vision.window_size;
    vision["full_attention_indexes"] = s.vision.full_attention;
    return {{"text_config", text},
            {"vision_config", vision},
            {"image_token_index", s.text.image_token}};
  }
  text["rope_scaling"] = {{"mrope_interleaved", true}, {"mrope_section", s.text.mrope_sections}};
  vision["depth"] = s.vision.depth;
  vision["num_heads"] = s.vision.num_heads;
  vision["num_position_embeddings"] = rows;
  vision["temporal_patch_size"] = s.vision.frames;
  vision["spatial_merge_size"] = GrootSizes::kMerge;
  vision["deepstack_visual_indexes"] = s.vision.deepstack;
  return {{"text_config", text}, {"vision_config", vision}, {"image_token_id", s.text.image_token}};
}

}  // namespace

GrootConfig groot_import_config(const fs::path& path, GrootVersion version) {
  const Json json = parse_json_file(path, {.code = ExitCode::kConfig});
  const Keys keys(json, path.string());
  std::string type = version == GrootVersion::kN17 ? "Gr00tN1d7" : "Gr00tN1d6";
  const std::string expected = type;
  keys.read("model_type", type);
  LS_CHECK(type == expected, ConfigError, "{}: model_type is '{}', this family reads '{}'",
           path.string(), type, expected);
  GrootConfig config(version);
  config.size = "full";
  GrootSizes s = config.sizes();
  class_defaults(s);
  read_head(keys, config, s);
  const fs::path backbone = path.parent_path() / "backbone_config.json";
  if (json.contains("backbone_config")) {
    read_backbone(keys.child("backbone_config"), s);
  } else if (fs::exists(backbone)) {
    const Json own = parse_json_file(backbone, {.code = ExitCode::kConfig});
    read_backbone(Keys(own, backbone.string()), s);
  } else {
    keys.read("backbone_embedding_dim", s.text.width);
  }
  keys.read("tune_llm", config.tune_llm);
  keys.read("tune_visual", config.tune_visual);
  keys.read("tune_top_llm_layers", config.tune_top_llm_layers);
  keys.read("tune_projector", config.tune_projector);
  keys.read("tune_diffusion_model", config.tune_diffusion);
  keys.read("tune_vlln", config.tune_vlln);
  int64_t width = s.text.width;
  keys.read("backbone_embedding_dim", width);
  LS_CHECK(width == s.text.width, ConfigError,
           "{}: backbone_embedding_dim is {}, the backbone's text layers are {} wide",
           path.string(), width, s.text.width);
  config.data.horizon = s.horizon;
  config.imported = s;
  config.check();
  return config;
}

GrootSizes groot_import_backbone(const fs::path& path, GrootVersion version) {
  GrootConfig config(version);
  config.size = "full";
  GrootSizes s = config.sizes();
  const Json json = parse_json_file(path, {.code = ExitCode::kConfig});
  const Keys keys(json, path.string());
  read_backbone(keys, s);
  keys.child("text_config").read("num_hidden_layers", s.text.depth);
  return s;
}

std::string groot_export_config(const GrootConfig& config) {
  const GrootSizes s = config.sizes();
  Json dit = blocks_json(s.dit);
  dit["norm_type"] = "ada_norm";
  dit["output_dim"] = s.hidden;
  dit["interleave_self_attention"] = s.interleave_self;
  Json json = {
      {"model_type", config.is_n17() ? "Gr00tN1d7" : "Gr00tN1d6"},
      {"model_name", config.is_n17() ? "nvidia/Cosmos-Reason2-2B" : "nvidia/Eagle-Block2A-2B-v2"},
      {"backbone_model_type", config.is_n17() ? "qwen" : "eagle"},
      {"tune_llm", config.tune_llm},
      {"tune_visual", config.tune_visual},
      {"tune_top_llm_layers", config.tune_top_llm_layers},
      {"tune_projector", config.tune_projector},
      {"tune_diffusion_model", config.tune_diffusion},
      {"tune_vlln", config.tune_vlln},
      {"backbone_embedding_dim", s.text.width},
      {"select_layer", s.text.depth},
      {"max_state_dim", s.max_state_dim},
      {"max_action_dim", s.max_action_dim},
      {"action_horizon", s.horizon},
      {"hidden_size", s.hidden},
      {"input_embedding_dim", s.dit.width()},
      {"add_pos_embed", s.add_positions},
      {"max_seq_len", s.position_rows},
      {"use_vlln", s.vlln},
      {"use_alternate_vl_dit", s.alternate_vl},
      {"attend_text_every_n_blocks", s.text_every},
      {"diffusion_model_cfg", dit},
      {"num_inference_timesteps", s.inference_steps},
      {"noise_beta_alpha", s.beta_alpha},
      {"noise_beta_beta", s.beta_beta},
      {"noise_s", s.noise_s},
      {"num_timestep_buckets", s.time_buckets},
      {"state_dropout_prob", s.state_dropout},
      {"max_num_embodiments", s.embodiments}};
  // The published backbones are known by their names; others travel along.
  if (config.size != "full" || config.imported) json["backbone_config"] = backbone_json(s);
  if (config.is_n17()) {
    json["state_history_length"] = s.state_history;
    json["use_vl_self_attention"] = s.vl.has_value();
    if (s.vl) json["vl_self_attention_cfg"] = blocks_json(*s.vl);
  }
  return json.dump(2) + "\n";
}

}  // namespace longship::models
