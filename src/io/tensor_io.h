#pragma once
// Tensors of LibTorch from and to safetensors. The only io header that needs ATen; target
// longship::tensor_io.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/weights.h"

namespace longship::io {

/// Throws CheckpointError for a type that has no counterpart (complex, quantised, ...).
at::ScalarType to_scalar_type(DType dtype);
DType to_dtype(at::ScalarType type);

/// An owning copy on the CPU, contiguous, with the file's shape and dtype. `info` belongs to the
/// given object.
at::Tensor to_tensor(const SafetensorsFile& file, const TensorInfo& info);
at::Tensor to_tensor(const Weights& weights, const TensorInfo& info);

/// All tensors of a file or of a folder of weights (see open_weights), by name. Throws
/// CheckpointError.
std::map<std::string, at::Tensor> load_tensors(const std::filesystem::path& path);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes the tensors (any device, any strides; copied to contiguous host memory one after another
/// where needed) with write_safetensors. Throws CheckpointError: undefined tensor, dtype without
/// counterpart, and all of write_safetensors.
void save_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                  const Metadata& metadata = {});

}  // namespace longship::io
