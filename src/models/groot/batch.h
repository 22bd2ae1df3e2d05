#pragma once
// A collated batch of GR00T N1.6 or N1.7.
//
// Pictures are packed as rows of patches and texts as rows of tokens, sample behind sample without
// padding. Which row is what is derived once, on the host, by prepare() (layout.h).

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/groot/layout.h"
#include "models/spec.h"

namespace longship::models {

class GrootBatch : public Batch {
 public:
  std::vector<std::pair<std::string, at::Tensor*>> tensors() override;
  std::unique_ptr<Batch> clone() const override;
  std::string signature() const override;

  // ---- From the transform. ---------------------------------------------------------------------
  /// [sum of rows * columns over the pictures, values of a patch] fp32. N1.6: patches in rows of
  /// the picture, values in order (y, x, channel). N1.7: patches in blocks of 2 x 2 (block row,
  /// block column, row, column), values in order (channel, frame, y, x).
  at::Tensor patches;
  /// Patches per column and row of every picture, sample after sample.
  std::vector<std::array<int64_t, 2>> grids;
  std::vector<int64_t> pictures;  // per sample
  /// [N] int64: tokens of all samples behind each other, the placeholders of pictures included.
  /// prepare() takes them into the layout; from then on they are a plan of the host.
  at::Tensor token_ids;
  std::vector<int64_t> lengths;  // tokens per sample
  at::Tensor state;              // [B, history, state width] fp32, normalised, zeros behind
  at::Tensor actions;            // [B, H, action width] fp32, normalised, zeros behind
  at::Tensor action_mask;        // [B, H, action width] fp32: 1 on what the sample really has
  at::Tensor embodiment;         // [B] int64, slot of the category-specific layers
  /// Raw state per sample, for relative actions to become absolute again; empty where none are.
  std::vector<std::vector<float>> raw_state;

  // ---- From prepare(). -------------------------------------------------------------------------
  at::Tensor noise;  // [B, H, action width] fp32
  at::Tensor beta;   // [B] fp32, the draw b: time = (1 - b) * noise_s
  at::Tensor
      state_u;  // [B] fp32 in [0, 1): the state is left out where it is below the probability
  at::Tensor dropout_keys;  // [B] int64, for ops::dropout_mask(); undefined: nothing is dropped
  /// [B * S, width]: the language stream in front of the first layer that trains, in place of
  /// patches, tokens and the tables of pictures; undefined before the frozen part ran.
  at::Tensor features;
  /// The slot of all samples, where they have one: no weights are gathered per sample then.
  std::optional<int64_t> one_embodiment;
  /// Every sample has rows of pictures and of text.
  bool text_and_images = false;
  GrootLayout layout;
};

/// The batch of a policy; throws InternalError for another family's.
GrootBatch& groot_batch(Batch& batch);
const GrootBatch& groot_batch(const Batch& batch);

}  // namespace longship::models
