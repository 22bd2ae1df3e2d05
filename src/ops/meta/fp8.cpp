// Shapes of the FP8 operators without memory.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/fp8_check.h"

namespace longship::ops {
namespace {

at::Tensor fp8_amax_meta(const at::Tensor& x) {
  return at::empty({1}, x.options().dtype(at::kFloat));
}

void fp8_quantize_meta(const at::Tensor& x, const OptionalTensor& states, int64_t index,
                       bool /*record*/, double /*margin*/, const OptionalTensor& q,
                       const OptionalTensor& q_t, const at::Tensor& inv_scale,
                       const OptionalTensor& column_sums) {
  check_fp8_quantize(x, states, index, {q, q_t, inv_scale}, column_sums);
}

void fp8_geglu_quantize_meta(const at::Tensor& gate_up, const OptionalTensor& states, int64_t index,
                             bool /*record*/, double /*margin*/, const OptionalTensor& q,
                             const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  check_fp8_geglu(gate_up, states, index, {q, q_t, inv_scale});
}

void fp8_geglu_backward_quantize_meta(const at::Tensor& dy, const at::Tensor& gate_up,
                                      const OptionalTensor& states, int64_t index, bool /*record*/,
                                      double /*margin*/, const OptionalTensor& q,
                                      const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  check_fp8_geglu_backward(dy, gate_up, states, index, {q, q_t, inv_scale});
}

void fp8_quantize_weights_meta(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                               at::TensorList scales, double /*margin*/) {
  check_fp8_weights(weights, q, q_t, scales);
}

at::Tensor fp8_matmul_meta(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                           const at::Tensor& b_inv_scale, const OptionalTensor& bias,
                           at::ScalarType dtype, bool /*fast_accumulation*/) {
  const Fp8Shape shape = check_fp8_matmul(a, b, a_inv_scale, b_inv_scale, bias, dtype);
  return at::empty({shape.rows, shape.cols}, a.options().dtype(dtype));
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("fp8_amax", fp8_amax_meta);
  m.impl("fp8_quantize", fp8_quantize_meta);
  m.impl("fp8_geglu_quantize", fp8_geglu_quantize_meta);
  m.impl("fp8_geglu_backward_quantize", fp8_geglu_backward_quantize_meta);
  m.impl("fp8_quantize_weights", fp8_quantize_weights_meta);
  m.impl("fp8_update_states", check_fp8_states);
  m.impl("fp8_matmul", fp8_matmul_meta);
}

}  // namespace
}  // namespace longship::ops
