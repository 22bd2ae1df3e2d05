#pragma once
// What the parity adapters of GR00T share: the tensors of a case, its batch, its bounds in bf16.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/groot/batch.h"
#include "models/groot/config.h"
#include "models/parity.h"

namespace longship::models {

using GrootParityTensors = std::map<std::string, at::Tensor>;

/// Tensors of inputs.safetensors and its like. Throws ConfigError naming a tensor that no adapter
/// reads.
class GrootParityInputs {
 public:
  explicit GrootParityInputs(const std::filesystem::path& path);
  bool has(const std::string& name) const { return tensors_.contains(name); }
  /// Throws ConfigError naming file and tensor where there is none.
  const at::Tensor& operator[](const std::string& name) const;
  /// These inputs moved by rounding.
  GrootParityInputs moved(uint64_t member, const std::string& prefix) const;

 private:
  std::filesystem::path path_;
  GrootParityTensors tensors_;
};

GrootVersion groot_parity_version(const ParityCase& c);
/// Makes every tensor a detached one on the host, floating ones fp32.
void groot_parity_to_host(GrootParityTensors& tensors);
/// The padded, left-aligned recording as a packed batch. Finds the padding token.
GrootBatch groot_parity_batch(const GrootParityInputs& in, GrootSizes& sizes);
ParityTolerance groot_low_precision_tolerance();

/// N1.7's backbone alone.
std::unique_ptr<ParityAdapter> make_groot_backbone_parity_adapter(const ParityCase& c,
                                                                  const ParityOptions& options);

}  // namespace longship::models
