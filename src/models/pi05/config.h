#pragma once
// Configuration of Pi0 and Pi0.5: the recipe's `model:` section, named sizes, and upstream's
// config.json.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "models/spec.h"
#include "nn/siglip.h"

namespace longship::models {

/// Every dimension of the network, resolved. 8 query heads always: the references hard-code them.
struct Pi05Sizes {
  static constexpr int64_t kNumHeads = 8;
  nn::SiglipSizes vision;
  int64_t width = 2048;  // prefix Gemma
  int64_t mlp_dim = 16384;
  int64_t expert_width = 1024;  // action expert
  int64_t expert_mlp_dim = 4096;
  int64_t depth = 18;  // both streams
  int64_t num_kv_heads = 1;
  int64_t head_dim = 256;
  int64_t vocab_size = 257152;
  int64_t max_action_dim = 32;
  int64_t max_state_dim = 32;
  int64_t token_limit = 200;  // text tokens of a sample
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
};

/// Optional overrides of one tower's sizes.
struct Pi05VisionOverrides {
  std::optional<int64_t> hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
      image_size, patch_size;
  std::optional<double> layer_norm_eps;
  void reflect(config::Visitor& visitor);
};
struct Pi05TextOverrides {
  std::optional<int64_t> width, depth, mlp_dim, num_kv_heads, head_dim, vocab_size;
  std::optional<double> rms_norm_eps, rope_theta;
  void reflect(config::Visitor& visitor);
};
struct Pi05ExpertOverrides {
  std::optional<int64_t> width, mlp_dim;
  void reflect(config::Visitor& visitor);
};

/// Standard deviations of the random initialisation (truncated normal at three deviations). Biases
/// and Gemma norm offsets start at 0, LayerNorm weights at 1. Not used when a checkpoint is loaded.
struct Pi05Init {
  double gain = 1.0;           // linear weights: gain / sqrt(fan_in)
  double residual_gain = 1.0;  // output projections of residual branches: residual_gain * gain /
                               // sqrt(fan_in * 2 depth)
  double embedding =
      1.0;  // token embedding: value / sqrt(width); the model multiplies by sqrt(width)
  double position = 0.5;     // vision position table
  double modulation = 0.02;  // adaRMS dense.weight
  double gate = 1.0;         // adaRMS gate bias: residual branches are open from the first step
  double action_out = 1.0;   // action_out_proj.weight: value / sqrt(fan_in)
  void reflect(config::Visitor& visitor);
};

struct Pi05Config : ModelConfig {
  Pi05Config();

  void reflect(config::Visitor& visitor) override;
  void bind_dataset(const data::Dataset& dataset) override;
  std::string state_column() const override { return state_feature; }
  std::string action_column() const override { return action_feature; }
  /// The named size with overrides applied, checked. Throws ConfigError naming the key.
  Pi05Sizes sizes() const;
  /// Checks what single-field limits cannot. Throws ConfigError.
  void check() const;
  /// Whether the loss averages over the dataset's own action dimensions only.
  bool masks_dims() const {
    return loss_dims == "real" || (loss_dims == "auto" && parity == "loongforge");
  }
  /// Whether each sample says which of the action dimensions are its own.
  bool says_dims() const { return data.dims_differ && loss_dims != "all"; }
  bool is_pi05() const { return variant == "pi05"; }
  int64_t horizon() const { return data.horizon; }
  /// The model's camera slots in order: those of data.cameras, else openpi's three.
  std::vector<std::string> slots() const;

  std::string variant = "pi05";  // pi05 | pi0
  std::string size = "demo";     // tiny | demo | full
  std::optional<std::string> checkpoint;
  std::optional<std::string> tokenizer;
  std::string parity = "openpi";  // openpi | loongforge
  std::vector<std::string> freeze;
  int64_t action_dim = 0;  // real action dims; 0: the dataset's
  int64_t state_dim = 0;   // real state dims; 0: the dataset's
  std::optional<int64_t> max_action_dim, max_state_dim, token_limit;
  Pi05VisionOverrides vision;
  Pi05TextOverrides text;
  Pi05ExpertOverrides expert;
  std::string resize = "openpi_pil";
  std::string normalization = "auto";  // auto | quantiles | mean_std | min_max | identity
  std::string norm_flavour = "longship";
  bool discrete_state = true;
  std::string state_feature = "observation.state";
  std::string action_feature = "action";
  int64_t num_inference_steps = 10;
  double time_alpha = 1.5, time_beta = 1.0, time_scale = 0.999, time_offset = 0.001;
  double min_period = 0.004, max_period = 4.0;
  bool mask_action_padding = false;
  std::string loss_dims = "auto";         // auto | all | real
  std::string prompt_overflow = "error";  // error | trim_task | reference
  std::string rope_dtype = "float32";     // float32 | model
  Pi05Init init;
};

/// Relative actions as lerobot's configuration says them: every dimension but the excluded names.
struct Pi05RelativeActions {
  std::vector<std::string> names;     // one per dimension
  std::vector<std::string> excluded;  // absolute ones
};
/// From a mask (shorter: the rest is absolute) and the dataset's names of `width` dimensions;
/// without names "action[0]", "action[1]", ... stand for them.
Pi05RelativeActions pi05_relative_actions(const std::vector<uint8_t>& mask, int64_t width,
                                          const std::vector<std::string>& dim_names);

/// `config.json` under lerobot's keys, custom sizes included. `action_dim` and `state_dim` are the
/// real dims; `relative` where actions are learned relative to the state.
std::string pi05_export_config(const Pi05Config& config, int64_t action_dim, int64_t state_dim,
                               const std::vector<std::string>& cameras,
                               const std::optional<Pi05RelativeActions>& relative = std::nullopt);

/// Reads a lerobot-style config.json: the public ones (named variants) and custom sizes. Throws
/// ConfigError naming file and key.
Pi05Config pi05_import_config(const std::filesystem::path& path);

}  // namespace longship::models
