#pragma once
// The collated batch of Pi0 and Pi0.5: only present pictures and valid text tokens, packed, so that
// padding does no work.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/pi05/layout.h"
#include "models/spec.h"

namespace longship::models {

/// B samples, V present pictures over all samples, T text rows (the valid tokens of all samples,
/// then padding of id -1 up to a bucket), S picture size, A horizon, D padded action and state
/// width. Host plans (`*_per_sample`) say how the packed dimensions split; they never leave the
/// host.
struct Pi05Batch : Batch {
  at::Tensor images;     // [V, 3, S, S] fp32 in [-1, 1]; sample-major, then slot order
  at::Tensor token_ids;  // [T] int64; sample-major, then -1
  at::Tensor state;  // [B, max_state_dim] fp32, normalised, zero-padded; undefined in parity cases
                     // without one
  at::Tensor actions;        // [B, A, D] fp32, normalised, zero-padded
  at::Tensor action_is_pad;  // [B, A] bool, true behind the end of the episode
  at::Tensor dim_is_real;  // [B, D] bool, dimensions of the sample's own robot; undefined where all
                           // samples have the configured ones
  at::Tensor augment;  // [V, 20] fp32, how the model changes each picture, or undefined: not at all
  at::Tensor noise;    // [B, A, D] fp32 injected, or undefined: drawn by the model
  at::Tensor time;     // [B] fp32 injected, or undefined: drawn by the model
  std::vector<float> raw_state;  // [B, state width] in raw units with relative actions, else empty
  std::vector<int64_t> images_per_sample;  // [B], sums to V
  std::vector<int64_t> tokens_per_sample;  // [B], sums to the valid part of T
  std::optional<PrefixLayout> layout;      // where the rows lie; made by Pi05Policy::prepare

  std::vector<std::pair<std::string, at::Tensor*>> tensors() override;
  std::unique_ptr<Batch> clone() const override { return std::make_unique<Pi05Batch>(*this); }
  std::string signature() const override;
  /// Throws ShapeError naming the field when shapes, dtypes or host plans do not fit each other.
  void check() const;
};

/// Packs the padded layout of the reference implementations.
/// images [B, C, 3, S, S] fp32, image_masks [B, C] bool, tokens [B, L] int32/int64, token_mask [B,
/// L] bool, state [B, D] fp32 or undefined, actions [B, A, D] fp32 or undefined, action_is_pad [B,
/// A] bool or undefined (none). Sample ids become 0..B-1. Valid tokens keep their order. Throws
/// ShapeError.
Pi05Batch pack(const at::Tensor& images, const at::Tensor& image_masks, const at::Tensor& tokens,
               const at::Tensor& token_mask, const at::Tensor& state, const at::Tensor& actions,
               const at::Tensor& action_is_pad);

}  // namespace longship::models
