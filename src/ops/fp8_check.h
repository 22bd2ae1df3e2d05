#pragma once
// Argument checks shared by the CPU, CUDA and Meta implementations of the FP8 operators.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace longship::ops {

using OptionalTensor = std::optional<at::Tensor>;

struct Fp8Shape {
  int64_t rows = 0;
  int64_t cols = 0;
};

/// Results that a quantising operator writes; the ones it has not are null.
struct Fp8Outputs {
  const OptionalTensor& q;
  const OptionalTensor& q_t;
  const at::Tensor& inv_scale;

  /// Format of the copies; e4m3 where none is asked for.
  at::ScalarType format() const;
};

/// Each throws ShapeError naming the operator, the argument and its shape, and returns the shape of
/// the matrix that is written.
Fp8Shape check_fp8_quantize(const at::Tensor& x, const OptionalTensor& states, int64_t index,
                            const Fp8Outputs& outputs, const OptionalTensor& column_sums);
Fp8Shape check_fp8_geglu(const at::Tensor& gate_up, const OptionalTensor& states, int64_t index,
                         const Fp8Outputs& outputs);
Fp8Shape check_fp8_geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up,
                                  const OptionalTensor& states, int64_t index,
                                  const Fp8Outputs& outputs);
void check_fp8_weights(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                       at::TensorList scales);
/// Returns M and N.
Fp8Shape check_fp8_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                          const at::Tensor& b_inv_scale, const OptionalTensor& bias,
                          at::ScalarType dtype);
void check_fp8_states(const at::Tensor& states);

}  // namespace longship::ops
