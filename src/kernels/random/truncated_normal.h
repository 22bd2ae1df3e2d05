#pragma once
// Truncated normal numbers from the counter-based generator of base/rng.h, element by element the
// same as on the host up to the rounding of log, sin and cos.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace longship::kernels {

/// out [count] fp32 = std * n, n standard normal with |n| <= limit: number i of the sequence of
/// (seed, stream, step 0, sample), drawn again as number i of step 1, 2, ... while it is outside.
struct TruncatedNormalArgs {
  float* out = nullptr;
  int64_t count = 0;
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t sample = 0;
  double std = 1.0;
  double limit = 3.0;
};
cudaError_t truncated_normal(const TruncatedNormalArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
