#pragma once
// How a file of weights stores its tensors, for exports that give back what was not trained.

#include <ATen/core/Tensor.h>

#include <map>
#include <set>
#include <string>

namespace longship::models {

/// What the file says that a policy's weights came from. Tensors are on the host, in the dtype of
/// the file. Names are public ones, those of parameters where it says so.
struct StoredWeights {
  /// Of every tensor that is exported: its dtype in the file.
  std::map<std::string, at::ScalarType> dtypes;
  /// Frozen parameters whose own dtype cannot hold the file's values, by name of the parameter.
  std::map<std::string, at::Tensor> exact;
  /// Parameters that the file leaves out; not exported while they are frozen.
  std::set<std::string> absent;
  /// Tensors that the model has no parameter for.
  std::map<std::string, at::Tensor> unused;
  /// Others of these that are a parameter once more (tied weights), and which; they stay that.
  std::map<std::string, std::string> copies;
};

}  // namespace longship::models
