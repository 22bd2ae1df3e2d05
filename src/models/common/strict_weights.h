#pragma once
// Parameters of a module from and to the tensors of a public checkpoint, strict in both directions.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensor_io.h"
#include "models/spec.h"
#include "nn/module.h"

namespace longship::models {

/// "[2, 3]".
std::string shape_text(at::IntArrayRef shape);
bool is_float(io::DType dtype);

/// Everything wrong with a file, collected.
struct WeightFaults {
  std::vector<std::string> missing, unexpected, mismatched;
  /// Throws CheckpointError with all names, unless there is nothing. `check`: what to look at.
  void raise(const std::filesystem::path& path, std::string_view check) const;
};

/// A file's tensors by the name that the model has for them; the pointers belong to `weights`.
using NamedInfos = std::map<std::string, const io::TensorInfo*>;

/// `canonical`: the model's name of a tensor, null for one that is dropped. Two tensors of one name
/// must be equal.
NamedInfos collect_weights(
    const io::Weights& weights,
    const std::function<std::optional<std::string>(std::string_view)>& canonical,
    WeightFaults& faults);

/// Copies the tensors into the module's parameters, casting to each one's dtype; those that have no
/// parameter are unexpected. Nothing is copied when there are faults. `sink` gets every parameter's
/// fp32 values before they are rounded; for a sharded model, whose parameters have no memory of
/// their own, it is all that happens. `optional`: names that a file may lack; they become zeros.
void copy_weights(nn::Module& module, const io::Weights& weights, NamedInfos tensors,
                  const std::filesystem::path& path, std::string_view check, WeightFaults faults,
                  const PreciseSink& sink,
                  const std::function<bool(std::string_view)>& optional = {});

/// Every parameter under its name, or the value that `values` has for it.
std::vector<NamedTensor> export_parameters(const nn::Module& module,
                                           std::span<const NamedTensor> values,
                                           std::string_view family);

/// Fills every parameter by `fill(name, tensor)`; one that is rounded, or has no memory, is filled
/// in fp32 first and given to `sink`.
void initialise_parameters(nn::Module& module, const PreciseSink& sink,
                           const std::function<void(const std::string&, at::Tensor&)>& fill);

}  // namespace longship::models
