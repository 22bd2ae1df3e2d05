#pragma once
// Bias and GELU in one pass: y = gelu_tanh(x + bias), fp32 arithmetic, one rounding; with keys
// dropout behind it, y = y * m, rounded once more.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/random/dropout.h"

namespace longship::kernels {

/// Dropout of the activation, rows_per_sample rows of a sample behind each other; keys [num_rows /
/// rows_per_sample], null: nothing is dropped. rows_per_sample * width <= 2^33, num_rows < 2^32.
struct GeluDropout {
  const int64_t* keys = nullptr;
  uint32_t rows_per_sample = 1;
  DropoutSite site;
};

/// x, y [num_rows, width] of type `element`; bias [width] of type `bias_element`. Contiguous, on
/// the device of the stream. width < 2^31.
struct GeluBiasArgs {
  const void* x = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  GeluDropout dropout;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
  ElementType bias_element = ElementType::kFloat32;
};

/// With dropout dy is first multiplied by m and rounded. dx [num_rows, width] in the type of x;
/// dbias [width] in the type of bias, overwritten; it sums the fp32 values of dx, not the rounded
/// ones. partial: workspace of gelu_bias_num_partials(num_rows, width) * width floats, 16-byte
/// aligned.
struct GeluBiasBackwardArgs {
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* dx = nullptr;
  void* dbias = nullptr;
  float* partial = nullptr;
  GeluDropout dropout;
  int64_t num_rows = 0;
  int64_t width = 0;
  ElementType element = ElementType::kFloat32;
  ElementType bias_element = ElementType::kFloat32;
};

/// Groups of rows that are summed apart in the first stage; 0 for no rows.
int64_t gelu_bias_num_partials(int64_t num_rows, int64_t width);

/// Asynchronous on `stream`. Bound by memory: reads x once, writes y once.
cudaError_t gelu_bias_forward(const GeluBiasArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Deterministic: every sum has a fixed order. Reads dy and x once,
/// writes dx once.
cudaError_t gelu_bias_backward(const GeluBiasBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
