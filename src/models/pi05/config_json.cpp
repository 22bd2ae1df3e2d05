// config.json of Pi0 and Pi0.5 under lerobot's keys.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/pi05/config.h"

namespace longship::models {
namespace {

using Json = nlohmann::ordered_json;

/// Reads keys of one object with messages that name file and path.
class Reader {
 public:
  Reader(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    LS_CHECK(object.is_object(), ConfigError, "{}: must be an object", place_);
  }
  bool has(const std::string& key) const {
    return object_.contains(key) && !object_[key].is_null();
  }
  Reader child(const std::string& key) const {
    LS_CHECK(has(key), ConfigError, "{}: key '{}' is missing", place_, key);
    return Reader(object_[key], place_ + ": " + key);
  }
  const Json& raw(const std::string& key) const { return object_[key]; }
  std::string text(const std::string& key) const {
    LS_CHECK(has(key) && object_[key].is_string(), ConfigError, "{}: '{}' must be a string", place_,
             key);
    return object_[key].get<std::string>();
  }
  int64_t integer(const std::string& key) const {
    LS_CHECK(has(key) && object_[key].is_number_integer(), ConfigError,
             "{}: '{}' must be an integer", place_, key);
    return object_[key].get<int64_t>();
  }
  double number(const std::string& key) const {
    LS_CHECK(has(key) && object_[key].is_number(), ConfigError, "{}: '{}' must be a number", place_,
             key);
    return object_[key].get<double>();
  }
  template <class T>
  void maybe(const std::string& key, T& value) const {
    if (has(key)) get(key, value);
  }
  const std::string& place() const { return place_; }

 private:
  void get(const std::string& key, int64_t& value) const { value = integer(key); }
  void get(const std::string& key, std::optional<int64_t>& value) const { value = integer(key); }
  void get(const std::string& key, double& value) const { value = number(key); }
  void get(const std::string& key, std::optional<double>& value) const { value = number(key); }

  const Json& object_;
  std::string place_;
};

/// Sizes of one stream as upstream writes them.
struct StreamSizes {
  int64_t width, depth, mlp_dim, num_heads, num_kv_heads, head_dim;
};

StreamSizes read_stream(const Reader& root, const std::string& variant_key,
                        const std::string& sizes_key) {
  const std::string variant = root.has(variant_key) ? root.text(variant_key) : "custom";
  if (root.has(sizes_key)) {
    const Reader r = root.child(sizes_key);
    return {r.integer("width"),     r.integer("depth"),        r.integer("mlp_dim"),
            r.integer("num_heads"), r.integer("num_kv_heads"), r.integer("head_dim")};
  }
  if (variant == "gemma_2b") return {2048, 18, 16384, 8, 1, 256};
  if (variant == "gemma_300m") return {1024, 18, 4096, 8, 1, 256};
  throw ConfigError(fmt::format(
      "{}: {} is '{}' and there is no '{}' with the sizes; known names are gemma_2b and gemma_300m",
      root.place(), variant_key, variant, sizes_key));
}

void read_vision(const Reader& root, Pi05Config& config) {
  if (root.has("vision_config")) {
    const Reader r = root.child("vision_config");
    r.maybe("hidden_size", config.vision.hidden_size);
    r.maybe("intermediate_size", config.vision.intermediate_size);
    r.maybe("num_hidden_layers", config.vision.num_hidden_layers);
    r.maybe("num_attention_heads", config.vision.num_attention_heads);
    r.maybe("image_size", config.vision.image_size);
    r.maybe("patch_size", config.vision.patch_size);
    r.maybe("layer_norm_eps", config.vision.layer_norm_eps);
  }
  if (!root.has("image_resolution")) return;
  const Json& size = root.raw("image_resolution");
  LS_CHECK(size.is_array() && size.size() == 2 && size[0].is_number_integer() && size[0] == size[1],
           ConfigError, "{}: 'image_resolution' must be two equal integers, it is {}", root.place(),
           size.dump());
  const int64_t side = size[0].get<int64_t>();
  LS_CHECK(!config.vision.image_size || *config.vision.image_size == side, ConfigError,
           "{}: 'image_resolution' is {} but vision_config.image_size is {}", root.place(), side,
           config.vision.image_size.value_or(0));
  config.vision.image_size = side;
}

/// Width of a feature such as output_features.action; 0 when it is not listed.
int64_t feature_width(const Reader& root, const std::string& group, const std::string& name) {
  if (!root.has(group) || !root.raw(group).contains(name)) return 0;
  const Json& feature = root.raw(group)[name];
  LS_CHECK(feature.is_object() && feature.contains("shape") && feature["shape"].is_array() &&
               feature["shape"].size() == 1 && feature["shape"][0].is_number_integer(),
           ConfigError, "{}: {}.{} must have a 'shape' of one integer", root.place(), group, name);
  return feature["shape"][0].get<int64_t>();
}

void read_cameras(const Reader& root, Pi05Config& config) {
  constexpr std::string_view kPrefix = "observation.images.";
  if (!root.has("input_features")) return;
  for (const auto& [name, feature] : root.raw("input_features").items()) {
    if (!name.starts_with(kPrefix)) continue;
    config.data.cameras.emplace_back(name.substr(kPrefix.size()), name);
  }
}

std::string norm_mode_key(const std::string& mode) {
  if (mode == "quantiles") return "QUANTILES";
  if (mode == "mean_std") return "MEAN_STD";
  if (mode == "min_max") return "MIN_MAX";
  return "IDENTITY";
}

std::string read_norm_mode(const Reader& root) {
  if (!root.has("normalization_mapping")) return "auto";
  const Reader map = root.child("normalization_mapping");
  const std::string action = map.has("ACTION") ? map.text("ACTION") : "IDENTITY";
  const std::string state = map.has("STATE") ? map.text("STATE") : action;
  LS_CHECK(action == state, ConfigError,
           "{}: ACTION is {} and STATE is {}; one mode for both is supported", map.place(), action,
           state);
  for (const std::string mode : {"quantiles", "mean_std", "min_max", "identity"}) {
    if (norm_mode_key(mode) == action) return mode;
  }
  throw ConfigError(fmt::format("{}: unknown mode '{}'", map.place(), action));
}

Json stream_json(int64_t width, int64_t depth, int64_t mlp, const Pi05Sizes& s) {
  return {{"width", width},
          {"depth", depth},
          {"mlp_dim", mlp},
          {"num_heads", Pi05Sizes::kNumHeads},
          {"num_kv_heads", s.num_kv_heads},
          {"head_dim", s.head_dim}};
}

void add_custom_sizes(Json& j, const Pi05Sizes& s) {
  j["paligemma_config"] = stream_json(s.width, s.depth, s.mlp_dim, s);
  j["action_expert_config"] = stream_json(s.expert_width, s.depth, s.expert_mlp_dim, s);
  j["vision_config"] = {{"model_type", "siglip_vision_model"},
                        {"hidden_size", s.vision.width},
                        {"num_attention_heads", s.vision.num_heads},
                        {"intermediate_size", s.vision.mlp_dim},
                        {"num_hidden_layers", s.vision.depth},
                        {"image_size", s.vision.image_size},
                        {"patch_size", s.vision.patch_size},
                        {"num_channels", 3},
                        {"layer_norm_eps", s.vision.eps},
                        {"hidden_act", "gelu_pytorch_tanh"},
                        {"attention_dropout", 0.0},
                        {"projection_dim", s.width},
                        {"vision_use_head", false}};
  j["text_config"] = {{"model_type", "gemma"},
                      {"hidden_size", s.width},
                      {"intermediate_size", s.mlp_dim},
                      {"num_hidden_layers", s.depth},
                      {"num_attention_heads", Pi05Sizes::kNumHeads},
                      {"num_key_value_heads", s.num_kv_heads},
                      {"head_dim", s.head_dim},
                      {"hidden_activation", "gelu_pytorch_tanh"},
                      {"rms_norm_eps", s.norm_eps},
                      {"rope_theta", s.rope_theta},
                      {"vocab_size", s.vocab_size},
                      {"pad_token_id", 0},
                      {"tie_word_embeddings", true}};
}

}  // namespace

Pi05RelativeActions pi05_relative_actions(const std::vector<uint8_t>& mask, int64_t width,
                                          const std::vector<std::string>& dim_names) {
  const bool named = static_cast<int64_t>(dim_names.size()) == width;
  Pi05RelativeActions out;
  for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
    out.names.push_back(named ? dim_names[i] : fmt::format("action[{}]", i));
    if (i >= mask.size() || mask[i] == 0) out.excluded.push_back(out.names.back());
  }
  return out;
}

std::string pi05_export_config(const Pi05Config& config, int64_t action_dim, int64_t state_dim,
                               const std::vector<std::string>& cameras,
                               const std::optional<Pi05RelativeActions>& relative) {
  const Pi05Sizes s = config.sizes();
  const bool is_public = s.width == 2048 && s.depth == 18 && s.mlp_dim == 16384 &&
                         s.num_kv_heads == 1 && s.head_dim == 256 && s.expert_width == 1024 &&
                         s.expert_mlp_dim == 4096 && s.vision.width == 1152 &&
                         s.vision.depth == 27 && s.vision.num_heads == 16 &&
                         s.vision.mlp_dim == 4304 && s.vision.patch_size == 14 &&
                         s.vision.image_size == 224 && s.vocab_size == 257152;
  const auto frozen = [&](const char* rule) {
    return std::find(config.freeze.begin(), config.freeze.end(), rule) != config.freeze.end();
  };
  Json j;
  j["type"] = config.variant;
  j["paligemma_variant"] = is_public ? "gemma_2b" : "custom";
  j["action_expert_variant"] = is_public ? "gemma_300m" : "custom";
  j["dtype"] = "float32";
  j["n_obs_steps"] = 1;
  j["chunk_size"] = config.horizon();
  j["n_action_steps"] = config.horizon();
  j["max_state_dim"] = s.max_state_dim;
  j["max_action_dim"] = s.max_action_dim;
  j["num_inference_steps"] = config.num_inference_steps;
  j["time_sampling_beta_alpha"] = config.time_alpha;
  j["time_sampling_beta_beta"] = config.time_beta;
  j["time_sampling_scale"] = config.time_scale;
  j["time_sampling_offset"] = config.time_offset;
  j["min_period"] = config.min_period;
  j["max_period"] = config.max_period;
  j["image_resolution"] = {s.vision.image_size, s.vision.image_size};
  j["empty_cameras"] = 0;
  j["tokenizer_max_length"] = s.token_limit;
  Json inputs = Json::object();
  for (const std::string& camera : cameras) {
    inputs["observation.images." + camera] = {
        {"type", "VISUAL"}, {"shape", {3, s.vision.image_size, s.vision.image_size}}};
  }
  if (state_dim > 0) inputs["observation.state"] = {{"type", "STATE"}, {"shape", {state_dim}}};
  j["input_features"] = inputs;
  j["output_features"] = {{"action", {{"type", "ACTION"}, {"shape", {action_dim}}}}};
  const std::string mode = config.normalization == "auto"
                               ? (config.is_pi05() ? "quantiles" : "mean_std")
                               : config.normalization;
  j["normalization_mapping"] = {
      {"VISUAL", "IDENTITY"}, {"STATE", norm_mode_key(mode)}, {"ACTION", norm_mode_key(mode)}};
  if (relative) {
    j["use_relative_actions"] = true;
    j["relative_exclude_joints"] = relative->excluded;
    j["action_feature_names"] = relative->names;
  }
  j["gradient_checkpointing"] = false;
  j["freeze_vision_encoder"] = frozen("vision");
  j["train_expert_only"] = frozen("expert_only");
  if (!is_public) add_custom_sizes(j, s);
  return j.dump(2) + "\n";
}

Pi05Config pi05_import_config(const std::filesystem::path& path) {
  const Json document =
      parse_ordered_json_file(path, {.max_bytes = 16 << 20, .code = ExitCode::kConfig});
  const Reader root(document, path.string());
  Pi05Config config;
  config.size = "full";
  config.variant = root.text("type");
  LS_CHECK(config.variant == "pi05" || config.variant == "pi0", ConfigError,
           "{}: 'type' is '{}'; this family reads pi05 and pi0", path.string(), config.variant);
  const StreamSizes text = read_stream(root, "paligemma_variant", "paligemma_config");
  const StreamSizes expert = read_stream(root, "action_expert_variant", "action_expert_config");
  LS_CHECK(text.num_heads == Pi05Sizes::kNumHeads && expert.num_heads == Pi05Sizes::kNumHeads,
           ConfigError, "{}: num_heads is {} and {}; the model has {} query heads in both streams",
           path.string(), text.num_heads, expert.num_heads, Pi05Sizes::kNumHeads);
  LS_CHECK(text.depth == expert.depth && text.num_kv_heads == expert.num_kv_heads &&
               text.head_dim == expert.head_dim,
           ConfigError,
           "{}: depth, num_kv_heads and head_dim must be equal in paligemma_config and "
           "action_expert_config",
           path.string());
  config.text.width = text.width;
  config.text.depth = text.depth;
  config.text.mlp_dim = text.mlp_dim;
  config.text.num_kv_heads = text.num_kv_heads;
  config.text.head_dim = text.head_dim;
  config.expert.width = expert.width;
  config.expert.mlp_dim = expert.mlp_dim;
  if (root.has("text_config")) {
    const Reader r = root.child("text_config");
    r.maybe("vocab_size", config.text.vocab_size);
    r.maybe("rms_norm_eps", config.text.rms_norm_eps);
    r.maybe("rope_theta", config.text.rope_theta);
  }
  read_vision(root, config);
  read_cameras(root, config);
  root.maybe("chunk_size", config.data.horizon);
  root.maybe("max_state_dim", config.max_state_dim);
  root.maybe("max_action_dim", config.max_action_dim);
  root.maybe("num_inference_steps", config.num_inference_steps);
  root.maybe("time_sampling_beta_alpha", config.time_alpha);
  root.maybe("time_sampling_beta_beta", config.time_beta);
  root.maybe("time_sampling_scale", config.time_scale);
  root.maybe("time_sampling_offset", config.time_offset);
  root.maybe("min_period", config.min_period);
  root.maybe("max_period", config.max_period);
  root.maybe("tokenizer_max_length", config.token_limit);
  config.action_dim = feature_width(root, "output_features", "action");
  config.state_dim = feature_width(root, "input_features", "observation.state");
  config.normalization = read_norm_mode(root);
  const auto flag = [&](const char* key, const char* rule) {
    if (root.has(key) && root.raw(key).is_boolean() && root.raw(key).get<bool>())
      config.freeze.push_back(rule);
  };
  flag("freeze_vision_encoder", "vision");
  flag("train_expert_only", "expert_only");
  config.check();
  return config;
}

}  // namespace longship::models
