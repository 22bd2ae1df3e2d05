#pragma once
// The tensors of the published checkpoints of GR00T, written down from their descriptions and not
// from the model.

#include <cstdint>
#include <string>
#include <vector>

#include "models/groot/config.h"

namespace longship::models::testing {

/// Sizes that the shapes follow from. The defaults are N1.6's.
struct GrootPublicSizes {
  GrootVersion version = GrootVersion::kN16;
  int64_t vision = 1152, vision_layers = 27, vision_mlp = 4304, positions = 256;
  int64_t patch = 14, frames = 1, deepstack = 0;
  int64_t vocab = 151680, text = 2048, text_layers = 16, text_mlp = 6144;
  int64_t queries = 2048, keys = 1024, head = 128;  // widths; head: of one
  int64_t dit = 1536, dit_layers = 32, vl_layers = 0;
  int64_t hidden = 1024, state = 128, action = 128, slots = 32, rows = 1024;
};
/// nvidia/GR00T-N1.6-3B, nvidia/GR00T-N1.7-3B.
GrootPublicSizes groot_published(GrootVersion version);
/// A small one: model.size demo.
GrootPublicSizes groot_demo(GrootVersion version);

struct GrootPublicTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const;
};
/// Name of the output head, which repeats the token embedding.
std::string groot_output_head(GrootVersion version);
std::string groot_embedding(GrootVersion version);
/// What the layers' names begin with; N1.6: what the pooling head's do.
std::string groot_text_layer(GrootVersion version, int64_t layer);
inline constexpr const char* kGrootPooling = "backbone.model.vision_model.vision_model.head.";
/// All tensors: N1.6 with the pooling head of the vision tower, both with the output head.
std::vector<GrootPublicTensor> groot_public_tensors(const GrootPublicSizes& sizes);
/// Those of one text layer.
std::vector<GrootPublicTensor> groot_public_text_layer(const GrootPublicSizes& sizes,
                                                       int64_t layer);

}  // namespace longship::models::testing
