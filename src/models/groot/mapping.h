#pragma once
// Public checkpoint names <-> parameters of GrootModel, strict in both directions.

#include <array>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/groot/model.h"
#include "models/spec.h"

namespace longship::models {

/// Public name of a checkpoint's tensor: LoongForge's outer "model." is stripped.
std::string groot_public_name(std::string_view name);
/// Whether a public name is one of those that a checkpoint may have though the model does not: the
/// output head of the language model, and text layers behind the kept ones.
bool groot_is_unused(std::string_view name, const GrootModel& model);

/// A public table of which the model holds the slots that it reads, GrootModel::slots(), as the
/// parameter of that name, and the others beside it.
struct GrootSlotTable {
  struct Part {
    std::string name;  // of the parameter
    at::Tensor tensor;
    std::vector<int64_t> rows;  // of the table, ascending: those of the parameter
  };
  std::string name;            // that of parts[0], the slots that are read
  std::vector<int64_t> shape;  // [embodiments, ...]
  std::array<Part, 2> parts;
};
/// In the order of the parameters; empty where all slots are read.
std::vector<GrootSlotTable> groot_slot_tables(const GrootModel& model);
/// Copies these rows of `whole` into `part`, one behind the other, casting.
void groot_take_slots(const at::Tensor& whole, const std::vector<int64_t>& rows, at::Tensor part);

/// Copies a checkpoint file or folder into the model. One CheckpointError lists all missing,
/// unexpected, mis-shaped and doubly defined tensors. A file without the vision tower's pooling
/// head leaves that at zero, and a file without the mask token likewise: the published ones differ.
/// `sink` gets both parts of a table, under the names of the parameters. `frozen`: whether a
/// parameter keeps the values of the file.
StoredWeights groot_load_weights(GrootModel& model, const std::filesystem::path& path,
                                 const PreciseSink& sink,
                                 const std::function<bool(std::string_view)>& frozen);

/// The public tensors of the model, values replaced by name of the parameter where given. A table
/// that is put together is a new tensor, and a meta tensor where one of its parts has no values
/// here (a sharded model's, or one given on the meta device).
std::vector<NamedTensor> groot_export_weights(const GrootModel& model,
                                              std::span<const NamedTensor> values);

}  // namespace longship::models
