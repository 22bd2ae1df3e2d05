#pragma once
// Public checkpoint names <-> parameters of Pi05Model, strict in both directions.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/pi05/model.h"
#include "models/spec.h"

namespace longship::models {

inline constexpr std::string_view kPi05Embedding = "paligemma_with_expert.paligemma.lm_head.weight";
inline constexpr std::string_view kPi05ExpertHead =
    "paligemma_with_expert.gemma_expert.lm_head.weight";

/// Canonical name of a checkpoint's tensor: outer prefixes of lerobot and LoongForge stripped, old
/// transformers layouts renamed, action_time_mlp_* renamed for Pi0.5. Null: a leftover that is
/// dropped (state_proj.* in a Pi0.5 file). `embed_tokens` keeps its own canonical name
/// `...language_model.embed_tokens.weight`.
std::optional<std::string> pi05_canonical_name(std::string_view name, bool is_pi05);

/// Copies a checkpoint file or folder into the model, casting to each parameter's dtype. One
/// CheckpointError lists all missing, unexpected, mis-shaped and doubly defined tensors. A Pi0 file
/// for a Pi0.5 model (or the reverse) is refused.
/// `sink` gets every parameter's fp32 values before they are rounded; for a sharded model, whose
/// parameters have no memory of their own, it is all that happens.
void pi05_load_weights(Pi05Model& model, const std::filesystem::path& path,
                       const PreciseSink& sink = {});

/// The complete public name set, values replaced by name where given.
std::vector<NamedTensor> pi05_export_weights(const Pi05Model& model,
                                             std::span<const NamedTensor> values);

}  // namespace longship::models
