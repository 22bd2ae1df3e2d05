#pragma once
// Configuration of GR00T N1.6 and N1.7: the recipe's `model:` section, named sizes, and upstream's
// config.json with the backbone's beside it.

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/spec.h"

namespace longship::models {

enum class GrootVersion { kN16 = 16, kN17 = 17 };

struct GrootVisionSizes {
  int64_t width = 1152;
  int64_t depth = 27;
  int64_t num_heads = 16;
  int64_t mlp_dim = 4304;
  int64_t patch_size = 14;
  int64_t table_side = 16;  // the position table has side x side rows
  double eps = 1e-6;
  // N1.6.
  bool rope = false, windows = false;
  int64_t window_size = 14;             // patches; also the base of the rotation
  std::vector<int64_t> full_attention;  // layers that see the whole picture when windows are on
  // N1.7.
  int64_t frames = 2;                // a picture is repeated so often
  std::vector<int64_t> deepstack{};  // layers whose output goes to the first text layers
};

struct GrootTextSizes {
  int64_t vocab_size = 151680;
  int64_t width = 2048;
  int64_t depth = 16;  // layers that are kept: select_layer
  int64_t mlp_dim = 6144;
  int64_t num_heads = 16;
  int64_t num_kv_heads = 8;
  int64_t head_dim = 128;
  double eps = 1e-6;
  double theta = 1e6;
  std::array<int64_t, 3> mrope_sections{0, 0, 0};  // N1.7: time, row, column
  int64_t image_token = 151669;
  int64_t pad_token = 151643;
};

/// A transformer of the action head.
struct GrootStackSizes {
  int64_t depth = 32;
  int64_t num_heads = 32;
  int64_t head_dim = 48;
  double dropout = 0.2;
  bool final_dropout = true;
  int64_t width() const { return num_heads * head_dim; }
};

struct GrootSizes {
  static constexpr int64_t kMerge = 2;  // 2 x 2 patches become one token
  GrootVersion version = GrootVersion::kN16;
  GrootVisionSizes vision;
  GrootTextSizes text;
  GrootStackSizes dit;
  std::optional<GrootStackSizes> vl;  // self-attention over the backbone's rows
  int64_t max_state_dim = 128;
  int64_t max_action_dim = 128;
  int64_t horizon = 50;  // rows of the action tensor; the data may have fewer
  int64_t state_history = 1;
  int64_t hidden = 1024;  // of the category-specific layers, and the DiT's output
  int64_t position_rows = 1024;
  int64_t embodiments = 32;
  bool add_positions = true;
  bool vlln = true;
  bool alternate_vl = true;
  bool interleave_self = true;
  int64_t text_every = 2;  // attend_text_every_n_blocks
  double state_dropout = 0;
  double beta_alpha = 1.5, beta_beta = 1.0, noise_s = 0.999;
  int64_t time_buckets = 1000;
  int64_t inference_steps = 4;

  /// Values of a patch: channels, frames and pixels.
  int64_t patch_values() const {
    const int64_t frames = version == GrootVersion::kN17 ? vision.frames : 1;
    return 3 * frames * vision.patch_size * vision.patch_size;
  }
};

/// Overrides of the towers' sizes, under the names of the fields above.
struct GrootVisionOverrides {
  std::optional<int64_t> width, depth, num_heads, mlp_dim, patch_size, table_side;
  void reflect(config::Visitor& visitor);
};
struct GrootTextOverrides {
  std::optional<int64_t> width, depth, mlp_dim, num_heads, num_kv_heads, head_dim, vocab_size;
  void reflect(config::Visitor& visitor);
};
struct GrootHeadOverrides {
  std::optional<int64_t> hidden, depth, num_heads, head_dim, vl_depth;
  void reflect(config::Visitor& visitor);
};

struct GrootConfig : ModelConfig {
  explicit GrootConfig(GrootVersion version);

  void reflect(config::Visitor& visitor) override;
  void bind_dataset(const data::Dataset& dataset) override;
  std::string state_column() const override { return state_feature; }
  std::string action_column() const override { return action_feature; }
  std::string random_frozen_inputs() const override;
  /// The named size with overrides applied, checked. Throws ConfigError naming the key.
  GrootSizes sizes() const;
  /// Checks what single-field limits cannot. Throws ConfigError.
  void check() const;
  bool is_n17() const { return version == GrootVersion::kN17; }
  /// Slots of the category-specific layers that a run reads and trains, ascending; empty: all.
  /// Those of the bound dataset's samples; of a recipe without dataset that of `embodiment`; all
  /// for a configuration made in code, which says nothing of robots. Throws ConfigError, DataError.
  std::vector<int64_t> trained_slots() const;
  /// Whether the final norm of the text layers is applied to what the head reads.
  bool final_norm() const { return !is_n17() || parity == "loongforge"; }

  GrootVersion version;
  std::string size = "demo";  // demo | full; imported: what config.json says
  std::optional<std::string> checkpoint;
  std::optional<std::string> tokenizer;  // tokenizer.json; null: beside the checkpoint
  std::string parity = "isaac";          // isaac | loongforge
  std::string embodiment = "new_embodiment";
  std::string train_slots = "used";  // used | all
  /// modality.json; null: as the checkpoint describes the embodiment, else the dataset's own, else
  /// one group each.
  std::optional<std::string> modality;
  std::string statistics = "dataset";  // dataset | checkpoint
  bool tune_llm = false, tune_visual = false, tune_projector = true, tune_diffusion = true,
       tune_vlln = true;
  int64_t tune_top_llm_layers = 0;
  std::vector<std::string> freeze;
  int64_t action_dim = 0;  // real action dims; 0: the dataset's
  int64_t state_dim = 0;   // real state dims; 0: the dataset's
  std::optional<int64_t> max_action_dim, max_state_dim, action_horizon;
  std::optional<double> state_dropout_prob;
  bool dropout = true;      // of the action head, in training
  bool bf16_inputs = true;  // N1.6 in bf16: the head's inputs are rounded too
  GrootVisionOverrides vision;
  GrootTextOverrides text;
  GrootHeadOverrides head;
  // Pictures: shortest edge after resizing, kept share of a crop, black borders to a square.
  int64_t shortest_edge = 256;
  double crop_fraction = 0.95;
  bool letterbox = true;
  bool color_jitter = true;
  // Numbers. Without a value: as processor_config.json of the checkpoint says, for all robots, else
  // false (clipping: true); with model.modality it says nothing. Where lists are empty: as the
  // checkpoint says of the robot that it describes, else none.
  std::optional<bool> use_percentiles, clip_outliers, relative_actions;
  std::vector<std::string> mean_std_groups;
  std::vector<std::string> sincos_state_groups;
  double state_input_dropout = 0;  // of the data transform, N1.7's recipe: 0.2
  std::string state_feature = "observation.state";
  std::string action_feature = "action";
  int64_t token_limit = 1024;
  int64_t num_inference_steps = 4;
  /// Sizes that came from config.json, in place of a named size.
  std::optional<GrootSizes> imported;

 private:
  bool is_recipe_ = false;
  std::vector<int64_t> bound_slots_;
};

/// The folder of model.checkpoint, which names a folder or a file in it; empty without one.
std::filesystem::path groot_checkpoint_folder(const GrootConfig& config);
/// The folder whose files describe robots: that of the checkpoint that the configuration belongs
/// to (DataBinding::own_checkpoint), else groot_checkpoint_folder().
std::filesystem::path groot_description_folder(const GrootConfig& config);
/// config.json of a public checkpoint or a parity case (keys of Isaac-GR00T); the backbone's own
/// configuration comes from backbone_config.json beside it where there is one, else it is the
/// published one. Throws ConfigError naming file and key.
GrootConfig groot_import_config(const std::filesystem::path& path, GrootVersion version);
/// Sizes of a model whose backbone has this configuration (and the published head). Throws
/// ConfigError naming file and key.
GrootSizes groot_import_backbone(const std::filesystem::path& path, GrootVersion version);
/// config.json under Isaac's keys; a backbone that is not the published one is in it too.
std::string groot_export_config(const GrootConfig& config);

}  // namespace longship::models
