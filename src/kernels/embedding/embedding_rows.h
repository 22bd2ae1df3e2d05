#pragma once
// Rows of an embedding table, and their gradient added into a given table of gradients.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// weight [vocab, width]; ids [num_ids]; y [num_ids, width] = weight[id] * scale, product in fp32,
/// rounded once. Negative ids give zero rows; ids >= vocab give rows of NaN, so that a broken batch
/// shows up in the loss instead of reading foreign memory. width < 2^31.
struct EmbeddingRowsArgs {
  const void* weight = nullptr;
  const int64_t* ids = nullptr;
  void* y = nullptr;
  int64_t num_ids = 0;
  int64_t vocab = 0;
  int64_t width = 0;
  float scale = 1.0f;
  ElementType element = ElementType::kFloat32;
};

/// grad_rows[id] += scale * (sum of dy[t] over all t with ids[t] == id), row_flags[id] = 1;
/// negative ids, pad_id and ids >= vocab are skipped. dy [num_ids, width] of type `element`;
/// grad_rows [vocab, width] of type `grad_element`; row_flags [vocab]. workspace:
/// embedding_rows_workspace (num_ids) ints. num_ids, vocab < 2^31.
struct EmbeddingRowsBackwardArgs {
  const void* dy = nullptr;
  const int64_t* ids = nullptr;
  void* grad_rows = nullptr;
  uint8_t* row_flags = nullptr;
  int32_t* workspace = nullptr;
  int64_t num_ids = 0;
  int64_t vocab = 0;
  int64_t width = 0;
  int64_t pad_id = -1;
  float scale = 1.0f;
  ElementType element = ElementType::kFloat32;
  ElementType grad_element = ElementType::kFloat32;
};

/// Number of int32 of the backward's workspace.
int64_t embedding_rows_workspace(int64_t num_ids);

/// Asynchronous on `stream`. Bound by memory: one read and one write per element of y.
cudaError_t embedding_rows_forward(const EmbeddingRowsArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`. Deterministic: the occurrences of an id are summed in list order,
/// within eight consecutive pieces of the list of occurrences, then the pieces in order; fp32;
/// added once. The search takes num_ids^2 comparisons: meant for some thousands of ids.
cudaError_t embedding_rows_backward(const EmbeddingRowsBackwardArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
