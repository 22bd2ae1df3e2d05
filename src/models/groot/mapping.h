#pragma once
// Public checkpoint names <-> parameters of GrootModel, strict in both directions.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/model.h"
#include "models/spec.h"

namespace longship::models {

/// Canonical name of a checkpoint's tensor: LoongForge's outer "model." is stripped. Null: the
/// output head of the language model, which is tied to the embedding and unused, and text layers
/// behind the kept ones.
std::optional<std::string> groot_canonical_name(std::string_view name, const GrootSizes& sizes);

/// Copies a checkpoint file or folder into the model. One CheckpointError lists all missing,
/// unexpected, mis-shaped and doubly defined tensors. A file without the vision tower's pooling
/// head leaves that at zero, and a file without the mask token likewise: the published ones differ.
void groot_load_weights(GrootModel& model, const std::filesystem::path& path,
                        const PreciseSink& sink = {});

/// The complete public name set, values replaced by name where given.
std::vector<NamedTensor> groot_export_weights(const GrootModel& model,
                                              std::span<const NamedTensor> values);

}  // namespace longship::models
