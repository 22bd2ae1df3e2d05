#pragma once
// Where the packed prefix tokens of a batch lie: sample after sample, and within a sample pictures,
// then text.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "models/pi05/batch.h"

namespace longship::models {

/// Index tensors are int64 on the batch's device. N tokens over all samples, L tokens of the
/// longest sample.
struct PrefixLayout {
  int64_t batch_size = 0;
  int64_t num_tokens = 0;  // N
  int64_t max_length = 0;  // L
  bool dense = false;      // every sample has L tokens: padded and packed layouts are the same
  at::Tensor gather;       // [N] row of cat(image tokens [V*T], text tokens) for every packed token
  at::Tensor lengths;      // [B] tokens per sample = position of the first suffix token
  at::Tensor pad_index;    // [B*L] packed row at every padded place; row 0 where unused
  at::Tensor unpad_index;  // [N] padded place of every packed row
  at::Tensor unused;       // [B*L-N] unused padded places
  at::Tensor key_mask;     // [B,1,1,L] fp32 additive: 0 or nn::kMasked; undefined when dense
};

/// `tokens_per_image` as the vision tower gives them. Positions need no table: a token's position
/// is its place within its sample, because masked tokens do not advance the reference's counter.
PrefixLayout make_prefix_layout(const Pi05Batch& batch, int64_t tokens_per_image);

}  // namespace longship::models
