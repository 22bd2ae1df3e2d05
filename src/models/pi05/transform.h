#pragma once
// Raw samples to Pi0/Pi0.5 batches and normalised actions back to raw units.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/augment/config.h"
#include "data/dataset.h"
#include "data/delta_actions.h"
#include "data/image/resize.h"
#include "data/normalizer.h"
#include "data/tokenizer/sentencepiece.h"
#include "models/pi05/batch.h"
#include "models/spec.h"

namespace longship::models {

/// A slot of the model and the dataset camera that fills it; an empty camera leaves the slot
/// without a picture.
using CameraSlots = std::vector<std::pair<std::string, std::string>>;

struct Pi05TransformOptions {
  std::string variant = "pi05";  // pi05 | pi0
  int64_t image_size = 224;      // pixels, square
  int64_t horizon = 50;          // frames per action chunk
  int64_t max_action_dim = 32;
  int64_t max_state_dim = 32;
  std::filesystem::path tokenizer_path;  // SentencePiece model
  int64_t vocab_size = 0;     // rows of the model's embedding; 0: not checked against the tokenizer
  int64_t token_limit = 200;  // most text tokens of a sample, BOS included
  /// The model's slots in order.
  std::vector<std::string> slots = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
  /// slot -> dataset camera, as the configuration's data.cameras says. Slots it does not name, or
  /// names with an empty camera, get no picture. Empty: cameras named like the slots, or the one
  /// camera of a one-slot model.
  CameraSlots cameras;
  data::ResizeFlavour resize = data::ResizeFlavour::kOpenpiPil;
  data::NormMode state_norm = data::NormMode::kQuantiles;
  data::NormMode action_norm = data::NormMode::kQuantiles;
  data::NormFlavour norm_flavour = data::NormFlavour::kLongship;
  bool discrete_state = true;  // pi05 only: state digits in the prompt; false: the Pi0 form of the
                               // prompt, no state at all
  std::string state_feature = "observation.state";
  std::string action_feature = "action";
  std::optional<int64_t>
      action_dim;  // what the configuration expects; null: whatever the dataset has
  std::optional<int64_t> state_dim;
  /// Place of each dimension of the dataset in the model's vectors; empty: the first ones.
  std::vector<int64_t> action_dims, state_dims;
  bool says_dims = false;  // batches carry dim_is_real
  /// What becomes of a prompt beyond token_limit: error | trim_task | reference.
  std::string prompt_overflow = "error";
  data::DeltaChoice delta;         // actions relative to the state
  double state_dropout = 0;        // of training samples: the normalised state becomes zeros
  data::AugmentConfig augment;     // resolved; of training samples
  bool augment_on_device = false;  // batches carry the parameters, pictures stay as they are
};

/// Which camera fills which slot. Rules in order: an explicit map; dataset cameras named like the
/// slots (bare or behind "observation.images."); one camera and one slot. Anything else throws
/// ConfigError that lists the slots wanted and the cameras present: names are never matched by
/// alphabet.
CameraSlots resolve_camera_slots(const std::vector<std::string>& slots, const CameraSlots& map,
                                 const std::vector<std::string>& cameras);

class Pi05Transform : public Transform {
 public:
  /// Reads feature shapes, cameras and statistics of `dataset` (missing statistics are computed
  /// from its rows, exactly). The dataset is not kept. Throws ConfigError, DataError (features,
  /// widths, statistics), CheckpointError (tokenizer).
  Pi05Transform(Pi05TransformOptions options, const data::Dataset& dataset);

  data::WindowSpec windows() const override;
  std::unique_ptr<Item> prepare(const data::RawSample& sample) const override;
  std::string prompt(const data::RawSample& sample) const override;
  /// Returns a Pi05Batch on the host.
  std::unique_ptr<Batch> collate(std::span<const std::unique_ptr<Item>> items) const override;
  /// actions [B, A, max_action_dim] or [B, A, action_dim] normalised, host fp32 -> [B, A,
  /// action_dim] raw units.
  at::Tensor denormalise_actions(const at::Tensor& actions,
                                 const Batch* observed = nullptr) const override;
  std::map<std::string, data::FeatureStats> own_stats() const override;
  /// Every distinct task with the longest state digits against the token limit; shapes and widths
  /// again.
  void check_dataset(const data::Dataset& dataset) const override;

  const Pi05TransformOptions& options() const { return options_; }
  const CameraSlots& camera_slots() const { return slots_; }
  /// Dimensions of the action that are relative to the state; empty: none.
  const std::vector<uint8_t>& delta_mask() const { return chunks_.mask; }
  int64_t action_dim() const { return action_norm_.width(); }
  /// Width of the dataset's state; 0 when the model does not read one.
  int64_t state_dim() const { return state_norm_ ? state_norm_->width() : 0; }
  const data::Normalizer& action_normalizer() const { return action_norm_; }
  const data::Normalizer* state_normalizer() const { return state_norm_ ? &*state_norm_ : nullptr; }
  const data::SentencePieceTokenizer& tokenizer() const { return *tokenizer_; }
  /// Token ids of a sample's prompt; `state` is the normalised state of the sample's frame (empty
  /// when unused).
  std::vector<int64_t> prompt_tokens(std::string_view task, std::span<const float> state) const;
  /// The same cut to token_limit as prompt_overflow says. Throws DataError with `error`, and with
  /// `trim_task` when not even an empty task fits.
  std::vector<int64_t> fitting_tokens(const data::RawSample& sample,
                                      std::span<const float> state) const;

 private:
  void check_prompts(const data::Dataset& dataset) const;
  /// Adds the states of the observed batch to relative dimensions, in place.
  void make_absolute(at::Tensor& raw, const Batch* observed) const;
  bool drops_state(const data::RawSample& sample) const;
  bool needs_state() const { return options_.variant == "pi0" || options_.discrete_state; }

  Pi05TransformOptions options_;
  CameraSlots slots_;
  data::ChunkSpec chunks_;
  int64_t delta_state_width_ = 0;  // of the state that actions are relative to
  std::map<std::string, data::FeatureStats> chunk_stats_;  // of relative actions, or empty
  std::shared_ptr<const data::SentencePieceTokenizer> tokenizer_;
  std::optional<data::Normalizer> state_norm_;
  data::Normalizer action_norm_;
  std::vector<int64_t> action_dims_, state_dims_;  // place of each dimension
  std::vector<size_t> digit_order_;                // dimensions of the state by rising place
};

}  // namespace longship::models
