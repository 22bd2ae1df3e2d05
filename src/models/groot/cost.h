#pragma once
// Floating-point operations of GR00T.

#include <array>
#include <cstdint>
#include <vector>

#include "models/groot/config.h"

namespace longship::models {

/// Forward pass of one sample; multiply-add counts 2, matrix products only.
struct GrootFlops {
  double vision = 0;     // tower with patch embedding
  double projector = 0;  // N1.6's projector, N1.7's mergers
  double text = 0;       // kept layers, attention counted causal
  double top_text = 0;   // of it, the trained layers
  double vl = 0;         // self-attention over the backbone's rows
  double dit = 0;        // with modulations; cross-attention over the rows that are read
  double heads = 0;      // encoders and decoder
  double total() const { return vision + projector + text + vl + dit + heads; }
};

/// `grids`: patches of the sample's pictures; `tokens`: all of its tokens; `padded`: rows of the
/// padded table.
GrootFlops groot_forward_flops(const GrootConfig& config,
                               const std::vector<std::array<int64_t, 2>>& grids, int64_t tokens,
                               int64_t padded);

/// A third of what forward and backward pass of a training step do: the part before the first
/// trained layer has no backward pass. Policy's convention is three times the forward pass.
double groot_training_flops(const GrootConfig& config, const GrootFlops& forward);

}  // namespace longship::models
