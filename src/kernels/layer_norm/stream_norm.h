#pragma once
// Normalisation between a residual stream and products of another type, alone or after a branch was
// added to the stream:
//   v     = branch + bias, rounded to the product's type   (without bias: the branch)
//   v     = v * m for every dropout of the branch, rounded each time
//   x     = h + v, rounded to the stream's type            (without branch: x is h)
//   x_hat = (x - mean) / sqrt(variance + eps),  y = x_hat * factor + shift
// factor is scale, or 1 + scale rounded to the type of scale; without scale it is 1. Arithmetic in
// fp32, the variance from deviations; y rounded to the product's type. Host API of the CUDA
// kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/common/param_rows.h"
#include "kernels/random/dropout.h"

namespace longship::kernels {

constexpr int kMaxBranchSites = 2;

/// What is added to the stream: values [num_rows, width] of the product's type.
struct StreamBranch {
  const void* values = nullptr;
  ParamRows bias;                 // one row
  const int64_t* keys = nullptr;  // [groups of rows], read where num_sites > 0
  int num_sites = 0;              // at most kMaxBranchSites
  DropoutSite sites[kMaxBranchSites];
};

/// Rows of the stream in `num_groups` groups of equal size, one for every row of scale and shift
/// and for every key. Tensors [num_rows, width] contiguous, on the device of the stream, none
/// overlapping another.
struct StreamNormArgs {
  const void* h = nullptr;  // of the stream's type
  StreamBranch branch;      // without values: no addition
  ParamRows scale, shift;
  bool plus_one = false;
  void* h_out = nullptr;  // x, written only with a branch
  void* y = nullptr;      // of the product's type
  float* mean = nullptr;  // [num_rows]
  float* rstd = nullptr;  // [num_rows]
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  float eps = 1e-5f;
  ElementType stream = ElementType::kFloat32;
  ElementType product = ElementType::kFloat32;
};

/// Gradients of the above, with d = dy * factor:
///   dh      = dh_out + rstd * (d - mean(d) - x_hat * mean(d * x_hat))
///   dbranch = dh rounded to the product's type, then times m for every dropout, the last first,
///             rounded each time;  dbias = sum of dbranch over all rows
///   dscale  = sum of dy * x_hat,  dshift = sum of dy   over the rows of a group
/// Pointers of what is not wanted are null; with dbranch null there is no branch.
struct StreamNormBackwardArgs {
  const void* dh_out = nullptr;  // of the stream's type; null: zero
  const void* dy = nullptr;
  const void* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  ParamRows scale;
  bool plus_one = false;
  StreamBranch branch;  // its values are not read
  void* dh = nullptr;
  void* dbranch = nullptr;
  ParamGradient dscale, dshift, dbias;
  float* workspace = nullptr;  // stream_norm_backward_workspace_bytes
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  ElementType stream = ElementType::kFloat32;
  ElementType product = ElementType::kFloat32;
};

/// Asynchronous on `stream`. Bound by memory: reads h and branch once, writes h_out and y once, for
/// widths up to 4096 that are multiples of 8 and tensors aligned to 16 bytes; others reread rows.
cudaError_t stream_norm_forward(const StreamNormArgs& args, cudaStream_t stream);

/// Asynchronous on `stream`, two launches. Deterministic: every sum has a fixed order. Without rows
/// the parameter gradients are set to zero.
cudaError_t stream_norm_backward(const StreamNormBackwardArgs& args, cudaStream_t stream);
/// Bytes that `workspace` must have, 16-byte aligned; all other fields of args are set.
int64_t stream_norm_backward_workspace_bytes(const StreamNormBackwardArgs& args);

/// The addition where no norm follows: out = h + v.
struct AddDroppedArgs {
  const void* h = nullptr;
  StreamBranch branch;
  void* out = nullptr;
  int64_t num_rows = 0;
  int64_t num_groups = 1;  // one for every key
  int64_t width = 0;
  ElementType stream = ElementType::kFloat32;
  ElementType product = ElementType::kFloat32;
};

/// The gradient of h is dout; dbranch and dbias as above, from dout.
struct AddDroppedBackwardArgs {
  const void* dout = nullptr;
  StreamBranch branch;
  void* dbranch = nullptr;
  ParamGradient dbias;
  float* workspace = nullptr;  // add_dropped_backward_workspace_bytes
  int64_t num_rows = 0;
  int64_t num_groups = 1;
  int64_t width = 0;
  ElementType stream = ElementType::kFloat32;
  ElementType product = ElementType::kFloat32;
};

/// Asynchronous on `stream`; bound by memory, as above.
cudaError_t add_dropped_forward(const AddDroppedArgs& args, cudaStream_t stream);
cudaError_t add_dropped_backward(const AddDroppedBackwardArgs& args, cudaStream_t stream);
int64_t add_dropped_backward_workspace_bytes(const AddDroppedBackwardArgs& args);

}  // namespace longship::kernels
