#pragma once
// Global gradient norm, clipping and AdamW over a table of tensors: three launches for a whole
// model, none of which needs the host. Host API of the CUDA kernels; plain pointers, no tensor
// library.
//
// Per element, each operation rounded to fp32 and none fused, so that the CPU path gives the same
// bits:
//   g' = clip * g;  m += (1 - b1) * (g' - m);  v = b2 * v + (1 - b2) * (g' * g')
//   p = p * decay - step_size * m / (sqrt(v) / sqrt_correction2 + eps)
//   ema = d * ema + (1 - d) * p
//
// Bytes per element: norm 2 (bf16 gradient) or 4; update with bf16 weights and gradients 28 (reads
// g 2, p 4, m 4, v 4; writes p 4, m 4, v 4, weight 2), with fp32 weights and gradients 28 too; 8
// more with an average. Flagged rows of a row-sparse tensor with bf16 gradients 30 (they are
// zeroed). Other rows and decay-only tensors 0, or when the decay factor is not exactly one 10
// (bf16 weights) or 8 (fp32); with an average 18 or 16.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"
#include "kernels/optimizer/adamw_types.h"

namespace longship::kernels {

/// One tensor of the table. Everything is contiguous and stays where it is. 16-byte accesses where
/// fp32 arrays are aligned to 16 bytes and bf16 ones to 8; element-wise accesses elsewhere.
struct AdamWTensor {
  void* param = nullptr;         // rounded copy of the master; null: the master is the parameter
  float* master = nullptr;       // [n]
  float* exp_avg = nullptr;      // [n]; null: only the decay applies
  float* exp_avg_sq = nullptr;   // [n]
  float* ema = nullptr;          // [n] or null
  uint8_t* row_flags = nullptr;  // [n / row_length] or null. Row-sparse: a row with flag 0 has zero
                                 // gradient and zero moments
  int32_t row_length = 0;
  int32_t group = 0;
  ElementType param_type = ElementType::kFloat32;
};

/// The gradient of one tensor; null stands for zeros.
struct AdamWGrad {
  void* data = nullptr;
  ElementType type = ElementType::kFloat32;
};

/// A unit of work: elements [begin, begin + count) of a tensor. Whole rows of a row-sparse tensor,
/// at most kAdamWMaxRows of them.
struct AdamWChunk {
  int64_t begin = 0;
  int32_t tensor = 0;
  int32_t count = 0;
};
constexpr int32_t kAdamWMaxRows = 256;

/// All tables lie in device memory.
struct AdamWNormArgs {
  const AdamWTensor* tensors = nullptr;
  const AdamWGrad* grads = nullptr;    // [tensors]
  const AdamWChunk* chunks = nullptr;  // of tensors with a gradient
  int64_t num_chunks = 0;
  double* partials = nullptr;  // [num_blocks]
  int32_t num_blocks = 0;      // adamw_norm_blocks()
};
/// Blocks that adamw_norm uses on a device of that many multiprocessors; the order of the sum
/// depends on it, and on nothing else.
int32_t adamw_norm_blocks(int64_t num_chunks, int32_t num_multiprocessors);
/// Sums of squares, one per block, in double. Reads every gradient once (of row-sparse tensors the
/// flagged rows).
cudaError_t adamw_norm(const AdamWNormArgs& args, cudaStream_t stream);

struct AdamWFinishArgs {
  const double* partials = nullptr;  // [num_partials]; used with with_norm
  int32_t num_partials = 0;
  bool with_norm = true;                 // writes report[kAdamWNorm] = sqrt(sum of the partials)
  bool with_decision = true;             // decides about the update that follows
  const int64_t* row_updates = nullptr;  // [2] number of updates before the one that a row is for
  double max_norm = -1.0;                // negative: no clipping
  int64_t* num_updates = nullptr;        // [1] the counter
  int32_t* fault = nullptr;              // [1] sticky
  int32_t* decision = nullptr;           // [1] row of scalars to use; -1: change nothing
  double* report = nullptr;              // [kAdamWReportSize]
};
/// One block. Decision: when the norm is finite, no fault is set and a row fits the counter, the
/// counter goes up by one and that row is used; else a fault bit is set and nothing will be
/// written. clip = min(1, max_norm / (norm + 1e-6)) in double.
cudaError_t adamw_finish(const AdamWFinishArgs& args, cudaStream_t stream);

struct AdamWUpdateArgs {
  const AdamWTensor* tensors = nullptr;
  const AdamWGrad* grads = nullptr;
  const AdamWChunk* chunks = nullptr;
  int64_t num_chunks = 0;
  const AdamWGroupScalars* scalars = nullptr;  // [2, num_groups]
  int32_t num_groups = 1;
  const int32_t* decision = nullptr;
  const double* report = nullptr;  // for the clip factor
  AdamWConstants constants;
};
/// The update. Gradient rows of row-sparse tensors are zero afterwards, also when the decision was
/// to change nothing.
cudaError_t adamw_update(const AdamWUpdateArgs& args, cudaStream_t stream);

/// Zeroes the flagged gradient rows of the chunks, which must all belong to row-sparse tensors.
cudaError_t adamw_zero_rows(const AdamWTensor* tensors, const AdamWGrad* grads,
                            const AdamWChunk* chunks, int64_t num_chunks, cudaStream_t stream);

}  // namespace longship::kernels
