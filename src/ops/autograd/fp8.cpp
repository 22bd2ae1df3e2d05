// Calls of the FP8 operators. They have no derivatives of their own: fp8_linear and fp8_gated_mlp
// define the gradients, so the autograd key only passes the calls on.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/fp8.h"
#include "ops/fp8_check.h"
#include "ops/fp8_internal.h"
#include "ops/handle.h"

namespace longship::ops {
namespace {

OptionalTensor optional(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

/// Room for the copies of a matrix [rows, cols] beside `like`.
Fp8Matrix new_matrix(const at::Tensor& like, int64_t rows, int64_t cols, at::ScalarType format,
                     const Fp8Copies& copies) {
  fp8_max(format);  // throws for other dtypes
  const auto options = like.options();
  Fp8Matrix out;
  if (copies.rows) out.q = at::empty({rows, cols}, options.dtype(format));
  if (copies.transposed) out.q_t = at::empty({cols, rows}, options.dtype(format));
  out.inv_scale = at::empty({1}, options.dtype(at::kFloat));
  if (copies.column_sums.has_value()) {
    out.column_sums = at::empty({cols}, options.dtype(*copies.column_sums));
  }
  return out;
}

void check_matrix(const char* op, const at::Tensor& x) {
  LS_CHECK(x.dim() == 2, ShapeError, "{}: the input must be a matrix, got {} dimensions", op,
           x.dim());
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  for (const char* name :
       {"fp8_amax", "fp8_quantize", "fp8_geglu_quantize", "fp8_geglu_backward_quantize",
        "fp8_quantize_weights", "fp8_update_states", "fp8_matmul"}) {
    m.impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace

at::Tensor fp8_amax(const at::Tensor& x) {
  static const auto op = typed_op<at::Tensor(const at::Tensor&)>("longship::fp8_amax");
  return op.call(x);
}

Fp8Matrix fp8_quantize(const at::Tensor& x, at::ScalarType format, const Fp8Scale& scale,
                       const Fp8Copies& copies) {
  static const auto op = typed_op<void(
      const at::Tensor&, const OptionalTensor&, int64_t, bool, double, const OptionalTensor&,
      const OptionalTensor&, const at::Tensor&, const OptionalTensor&)>("longship::fp8_quantize");
  check_matrix("fp8_quantize", x);
  Fp8Matrix out = new_matrix(x, x.size(0), x.size(1), format, copies);
  op.call(x, optional(scale.states), scale.index, scale.record, scale.margin, optional(out.q),
          optional(out.q_t), out.inv_scale, optional(out.column_sums));
  return out;
}

Fp8Matrix fp8_geglu_quantize(const at::Tensor& gate_up, at::ScalarType format,
                             const Fp8Scale& scale, const Fp8Copies& copies) {
  static const auto op =
      typed_op<void(const at::Tensor&, const OptionalTensor&, int64_t, bool, double,
                    const OptionalTensor&, const OptionalTensor&, const at::Tensor&)>(
          "longship::fp8_geglu_quantize");
  check_matrix("fp8_geglu_quantize", gate_up);
  LS_CHECK(!copies.column_sums.has_value(), ShapeError, "fp8_geglu_quantize: no column sums");
  Fp8Matrix out = new_matrix(gate_up, gate_up.size(0), gate_up.size(1) / 2, format, copies);
  op.call(gate_up, optional(scale.states), scale.index, scale.record, scale.margin, optional(out.q),
          optional(out.q_t), out.inv_scale);
  return out;
}

Fp8Matrix fp8_geglu_backward_quantize(const at::Tensor& dy, const at::Tensor& gate_up,
                                      at::ScalarType format, const Fp8Scale& scale,
                                      const Fp8Copies& copies) {
  static const auto op =
      typed_op<void(const at::Tensor&, const at::Tensor&, const OptionalTensor&, int64_t, bool,
                    double, const OptionalTensor&, const OptionalTensor&, const at::Tensor&)>(
          "longship::fp8_geglu_backward_quantize");
  check_matrix("fp8_geglu_backward_quantize", gate_up);
  LS_CHECK(!copies.column_sums.has_value(), ShapeError,
           "fp8_geglu_backward_quantize: no column sums");
  Fp8Matrix out = new_matrix(gate_up, gate_up.size(0), gate_up.size(1), format, copies);
  op.call(dy, gate_up, optional(scale.states), scale.index, scale.record, scale.margin,
          optional(out.q), optional(out.q_t), out.inv_scale);
  return out;
}

at::Tensor fp8_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                      const at::Tensor& b_inv_scale, const std::optional<at::Tensor>& bias,
                      at::ScalarType dtype, bool fast_accumulation) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, const OptionalTensor&, at::ScalarType, bool)>(
          "longship::fp8_matmul");
  return op.call(a, b, a_inv_scale, b_inv_scale, bias, dtype, fast_accumulation);
}

void call_fp8_quantize_weights(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                               at::TensorList scales, double margin) {
  static const auto op =
      typed_op<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, double)>(
          "longship::fp8_quantize_weights");
  op.call(weights, q, q_t, scales, margin);
}

void call_fp8_update_states(const at::Tensor& states) {
  static const auto op = typed_op<void(const at::Tensor&)>("longship::fp8_update_states");
  op.call(states);
}

}  // namespace longship::ops
