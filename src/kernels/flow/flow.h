#pragma once
// Flow matching: the mixture of actions and noise, and the squared error of the velocity.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// x_t [num_samples, per_sample] = t noise + (1 - t) actions, t = time[sample] fp32; arithmetic in
/// fp32, one rounding. Contiguous, one element type. per_sample < 2^31.
struct FlowMixArgs {
  const void* actions = nullptr;
  const void* noise = nullptr;
  const float* time = nullptr;
  void* x_t = nullptr;
  int64_t num_samples = 0;
  int64_t per_sample = 0;
  ElementType element = ElementType::kFloat32;
};

/// v, actions, noise [num_steps, width], v of its own element type; is_pad [num_steps] or null. u =
/// noise - actions. loss: mean of (v - u)^2 over the steps that are not padding and the first
/// `dims` columns; loss_all: over all columns; count: dims * max(1, steps that are not padding),
/// what loss was divided by. Padded steps may hold anything. partial: workspace of 3 *
/// flow_loss_num_partials(...) floats. width < 2^31.
struct FlowLossArgs {
  const void* v = nullptr;
  const void* actions = nullptr;
  const void* noise = nullptr;
  const bool* is_pad = nullptr;
  float* loss = nullptr;
  float* loss_all = nullptr;
  float* count = nullptr;
  float* partial = nullptr;
  int64_t num_steps = 0;
  int64_t width = 0;
  int64_t dims = 0;
  ElementType v_element = ElementType::kFloat32;
  ElementType element = ElementType::kFloat32;
};

/// dv [num_steps, width] in the type of v: 2 (v - u) dloss / count in the first `dims` columns of
/// steps that are not padding, 0 elsewhere. dloss, count: device scalars.
struct FlowLossBackwardArgs {
  const float* dloss = nullptr;
  const void* v = nullptr;
  const void* actions = nullptr;
  const void* noise = nullptr;
  const bool* is_pad = nullptr;
  const float* count = nullptr;
  void* dv = nullptr;
  int64_t num_steps = 0;
  int64_t width = 0;
  int64_t dims = 0;
  ElementType v_element = ElementType::kFloat32;
  ElementType element = ElementType::kFloat32;
};

/// Blocks of the first stage; depends on the number of elements only.
int64_t flow_loss_num_partials(int64_t num_steps, int64_t width);

/// All asynchronous on `stream`; the sums of flow_loss have a fixed order.
cudaError_t flow_mix(const FlowMixArgs& args, cudaStream_t stream);
cudaError_t flow_loss(const FlowLossArgs& args, cudaStream_t stream);
cudaError_t flow_loss_backward(const FlowLossBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
