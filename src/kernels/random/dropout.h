#pragma once
// Dropout with masks from the counter-based generator of base/rng.h, bit for bit the same as on the
// host. Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// One dropout of a model. Element i of a sample is dropped where word i % 4 of Philox4x32-10 with
/// the sample's key and counter {i / 4, site, purpose} is below `threshold`; what is kept is
/// multiplied by `multiplier`, a value of the element type.
struct DropoutSite {
  uint32_t site = 0;
  uint32_t purpose = 0;
  uint32_t threshold = 0;
  float multiplier = 1.0f;
};

/// keys [num_samples]; x and y [num_samples, sample_size] of type `element`, any alignment, 16
/// bytes and a multiple of 8 elements per sample are fast. y = x * m, rounded once, with m = 0 for
/// what is dropped; without x, y = m. sample_size <= 2^33.
struct DropoutArgs {
  const void* x = nullptr;
  const int64_t* keys = nullptr;
  void* y = nullptr;
  int64_t num_samples = 0;
  int64_t sample_size = 0;
  DropoutSite site;
  ElementType element = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Reads x once, writes y once.
cudaError_t dropout(const DropoutArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
