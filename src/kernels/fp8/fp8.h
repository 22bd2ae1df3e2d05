#pragma once
// Conversion of bf16 matrices to FP8 with one scale per matrix, for GEMMs that take both operands
// with the contracted dimension contiguous: every matrix can be written as it is and transposed in
// one read. Host API of the CUDA kernels; plain pointers, no tensor library.
//
//   q = fp8(x * scale), rounded to nearest even, saturated; an infinite or NaN x gives NaN.
//   scale = target / amax, target = largest fp8 value / 2^margin, at most 2^100; 1 for amax = 0.
//
// Every matrix has a number of rows and of columns that are multiples of 16, is contiguous, and its
// address is a multiple of 16. Everything is asynchronous on `stream`, deterministic (maxima only,
// and sums in a fixed order) and can be captured in a graph.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

enum class Fp8Format { kE4M3, kE5M2 };

/// Largest number of blocks, and of partial maxima, of a pass that looks for amax: two blocks on
/// each of the 132 multiprocessors.
constexpr int kFp8AmaxPartials = 264;
/// Rows and columns that one block converts.
constexpr int kFp8Tile = 128;

/// Where the scale comes from and what is noted.
struct Fp8ScaleArgs {
  /// Delayed scaling: {scale, target, amax history...}; scale 0 means that the history is empty and
  /// the matrix is scaled by its own amax. Null: always by its own amax.
  const float* state = nullptr;
  float target = 1.0f;         // where state is null
  float* partials = nullptr;   // scratch, kFp8AmaxPartials floats
  float* record = nullptr;     // amax of this matrix is joined to it by maximum; may be null
  float* inv_scale = nullptr;  // out, 1 float: 1 / scale
};

/// amax [1] = max |x|, NaN where x holds one. x fp32 or bf16, any number of elements and alignment.
struct Fp8AmaxArgs {
  const void* x = nullptr;
  int64_t num_elements = 0;
  ElementType element = ElementType::kBFloat16;
  float* partials = nullptr;  // scratch, kFp8AmaxPartials floats
  float* amax = nullptr;
};

/// x [rows, cols] bf16 -> q [rows, cols], q_t [cols, rows]; each may be null. column_sums [cols],
/// sums of x over the rows in fp32, may be null.
struct Fp8QuantizeArgs {
  const void* x = nullptr;
  uint8_t* q = nullptr;
  uint8_t* q_t = nullptr;
  float* sum_partials = nullptr;  // scratch, ceil(rows / kFp8Tile) * cols, with column_sums
  void* column_sums = nullptr;
  ElementType sums_element = ElementType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  Fp8Format format = Fp8Format::kE4M3;
  Fp8ScaleArgs scale;
};

/// gate_up [rows, 2 * hidden] bf16, gate first. Forward (dy null): gelu_tanh(gate) * up as q
/// [rows, hidden] and q_t [hidden, rows]. Backward: dy [rows, hidden] bf16, the gradient of gate_up
/// as q [rows, 2 * hidden] and q_t [2 * hidden, rows]. Arithmetic in fp32, without rounding to bf16
/// before the conversion. q and q_t may be null.
struct Fp8GegluArgs {
  const void* dy = nullptr;
  const void* gate_up = nullptr;
  uint8_t* q = nullptr;
  uint8_t* q_t = nullptr;
  int64_t rows = 0;
  int64_t hidden = 0;
  Fp8Format format = Fp8Format::kE4M3;
  Fp8ScaleArgs scale;
};

/// One weight of a batch, scaled by its own amax: w [rows, cols] bf16 -> q, q_t (may be null) and
/// scale[0] = 1 / scale, scale[1] = amax.
struct Fp8WeightArgs {
  const void* w = nullptr;
  uint8_t* q = nullptr;
  uint8_t* q_t = nullptr;
  float* scale = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
};

/// Reads x once.
cudaError_t fp8_amax(const Fp8AmaxArgs& args, cudaStream_t stream);
/// Reads x once, twice with current scaling.
cudaError_t fp8_quantize(const Fp8QuantizeArgs& args, cudaStream_t stream);
cudaError_t fp8_geglu_quantize(const Fp8GegluArgs& args, cudaStream_t stream);
cudaError_t fp8_geglu_backward_quantize(const Fp8GegluArgs& args, cudaStream_t stream);
/// All weights in three launches per 64; e4m3.
cudaError_t fp8_quantize_weights(const Fp8WeightArgs* weights, int64_t num_weights, float target,
                                 cudaStream_t stream);
/// states [num_states, 2 + history]: row {scale, target, amax of this step, of the last, ...}. The
/// next scale is target / the largest finite entry (0 where there is none); the history moves on by
/// one and this step's place becomes 0.
cudaError_t fp8_update_states(float* states, int64_t num_states, int64_t history,
                              cudaStream_t stream);

}  // namespace longship::kernels
