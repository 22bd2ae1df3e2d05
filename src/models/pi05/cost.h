#pragma once
// Floating-point work per sample, for utilisation figures and for balancing.

#include <cstdint>

#include "models/pi05/config.h"

namespace longship::models {

/// Multiply-add counts 2; matrix products only (embedding lookup, norms, softmax and RoPE
/// excluded).
struct Pi05Flops {
  double vision = 0;  // tower, patch embedding, projector
  double prefix = 0;  // linear layers of the prefix stream
  double expert = 0;  // linear layers of the expert, modulations, heads
  double attention = 0;
  double total() const { return vision + prefix + expert + attention; }
};

/// Forward of one sample as executed here: `num_images` encoded pictures, `num_text` valid tokens,
/// no last-layer prefix work, two rectangular attentions. Training counts three times this.
Pi05Flops pi05_forward_flops(const Pi05Config& config, int64_t num_images, int64_t num_text);

/// The same as the reference implementations execute it: `slots` pictures, every text slot, full
/// attention over all tokens, nothing skipped; the base of utilisation figures comparable with
/// theirs.
Pi05Flops pi05_reference_flops(const Pi05Config& config, int64_t slots);

}  // namespace longship::models
