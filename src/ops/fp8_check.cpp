#include "ops/fp8_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/fp8.h"

namespace longship::ops {
namespace {

bool is_fp8(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat8_e4m3fn || t.scalar_type() == at::kFloat8_e5m2;
}

/// Shape of the matrix that is read.
Fp8Shape check_matrix(const char* op, const char* name, const at::Tensor& x) {
  LS_CHECK(x.dim() == 2 && x.is_contiguous(), ShapeError,
           "{}: {} must be a contiguous matrix, got [{}]", op, name, fmt::join(x.sizes(), ", "));
  LS_CHECK(x.size(0) % 16 == 0 && x.size(1) % 16 == 0, ShapeError,
           "{}: rows and columns of {} must be multiples of 16 (pad them), got [{}]", op, name,
           fmt::join(x.sizes(), ", "));
  const bool known =
      x.scalar_type() == at::kBFloat16 || (x.scalar_type() == at::kFloat && !x.is_cuda());
  LS_CHECK(known, ShapeError, "{}: {} must be bfloat16 (on the CPU float32 too), got {}", op, name,
           at::toString(x.scalar_type()));
  return {x.size(0), x.size(1)};
}

void check_copy(const char* op, const char* name, const at::Tensor& q, int64_t rows, int64_t cols) {
  LS_CHECK(is_fp8(q) && q.is_contiguous() && q.dim() == 2 && q.size(0) == rows && q.size(1) == cols,
           ShapeError, "{}: {} must be a contiguous fp8 matrix [{}, {}], got {} [{}]", op, name,
           rows, cols, at::toString(q.scalar_type()), fmt::join(q.sizes(), ", "));
}

void check_fp32(const char* op, const char* name, const at::Tensor& t, int64_t size) {
  LS_CHECK(t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() == size, ShapeError,
           "{}: {} must be {} contiguous float32, got {} [{}]", op, name, size,
           at::toString(t.scalar_type()), fmt::join(t.sizes(), ", "));
}

void check_outputs(const char* op, const Fp8Shape& shape, const OptionalTensor& states,
                   int64_t index, const Fp8Outputs& outputs) {
  if (states.has_value()) {
    check_fp8_states(*states);
    LS_CHECK(index >= 0 && index < states->size(0), ShapeError, "{}: state {} of {}", op, index,
             states->size(0));
  }
  if (outputs.q.has_value()) check_copy(op, "q", *outputs.q, shape.rows, shape.cols);
  if (outputs.q_t.has_value()) check_copy(op, "q_t", *outputs.q_t, shape.cols, shape.rows);
  LS_CHECK(!outputs.q.has_value() || !outputs.q_t.has_value() ||
               outputs.q->scalar_type() == outputs.q_t->scalar_type(),
           ShapeError, "{}: q and q_t must have one format", op);
  check_fp32(op, "inv_scale", outputs.inv_scale, 1);
}

}  // namespace

at::ScalarType Fp8Outputs::format() const {
  if (q.has_value()) return q->scalar_type();
  return q_t.has_value() ? q_t->scalar_type() : at::kFloat8_e4m3fn;
}

double fp8_max(at::ScalarType format) {
  if (format == at::kFloat8_e4m3fn) return 448.0;
  if (format == at::kFloat8_e5m2) return 57344.0;
  throw ShapeError(fmt::format("fp8: {} is not an fp8 format; use float8_e4m3fn or float8_e5m2",
                               at::toString(format)));
}

void check_fp8_states(const at::Tensor& states) {
  LS_CHECK(
      states.dim() == 2 && states.size(1) >= 3 && states.is_contiguous() &&
          states.scalar_type() == at::kFloat,
      ShapeError,
      "fp8: states must be contiguous float32 [num_states, 2 + history] with history >= 1, got "
      "{} [{}]",
      at::toString(states.scalar_type()), fmt::join(states.sizes(), ", "));
}

Fp8Shape check_fp8_quantize(const at::Tensor& x, const OptionalTensor& states, int64_t index,
                            const Fp8Outputs& outputs, const OptionalTensor& column_sums) {
  const Fp8Shape shape = check_matrix("fp8_quantize", "x", x);
  check_outputs("fp8_quantize", shape, states, index, outputs);
  if (column_sums.has_value()) {
    const bool known =
        column_sums->scalar_type() == at::kFloat || column_sums->scalar_type() == at::kBFloat16;
    LS_CHECK(known && column_sums->is_contiguous() && column_sums->numel() == shape.cols,
             ShapeError, "fp8_quantize: column_sums must be [{}] float32 or bfloat16, got {} [{}]",
             shape.cols, at::toString(column_sums->scalar_type()),
             fmt::join(column_sums->sizes(), ", "));
  }
  return shape;
}

Fp8Shape check_fp8_geglu(const at::Tensor& gate_up, const OptionalTensor& states, int64_t index,
                         const Fp8Outputs& outputs) {
  Fp8Shape shape = check_matrix("fp8_geglu_quantize", "gate_up", gate_up);
  LS_CHECK(shape.cols % 32 == 0, ShapeError,
           "fp8_geglu_quantize: the hidden width must be a multiple of 16, got gate_up [{}]",
           fmt::join(gate_up.sizes(), ", "));
  shape.cols /= 2;
  check_outputs("fp8_geglu_quantize", shape, states, index, outputs);
  return shape;
}

Fp8Shape check_fp8_geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up,
                                  const OptionalTensor& states, int64_t index,
                                  const Fp8Outputs& outputs) {
  const char* op = "fp8_geglu_backward_quantize";
  const Fp8Shape hidden = check_matrix(op, "dy", dy);
  const Fp8Shape shape = check_matrix(op, "gate_up", gate_up);
  LS_CHECK(shape.rows == hidden.rows && shape.cols == 2 * hidden.cols, ShapeError,
           "{}: gate_up [{}] must be twice as wide as dy [{}]", op,
           fmt::join(gate_up.sizes(), ", "), fmt::join(dy.sizes(), ", "));
  LS_CHECK(dy.scalar_type() == gate_up.scalar_type(), ShapeError,
           "{}: dy and gate_up must have one dtype", op);
  check_outputs(op, shape, states, index, outputs);
  return shape;
}

void check_fp8_weights(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                       at::TensorList scales) {
  const char* op = "fp8_quantize_weights";
  LS_CHECK(q.size() == weights.size() && scales.size() == weights.size() &&
               (q_t.empty() || q_t.size() == weights.size()),
           ShapeError, "{}: {} weights, {} q, {} q_t, {} scales", op, weights.size(), q.size(),
           q_t.size(), scales.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const Fp8Shape shape = check_matrix(op, "a weight", weights[i]);
    check_copy(op, "q", q[i], shape.rows, shape.cols);
    if (!q_t.empty()) check_copy(op, "q_t", q_t[i], shape.cols, shape.rows);
    const bool e4m3 = q[i].scalar_type() == at::kFloat8_e4m3fn &&
                      (q_t.empty() || q_t[i].scalar_type() == at::kFloat8_e4m3fn);
    LS_CHECK(e4m3, ShapeError, "{}: weights are float8_e4m3fn", op);
    check_fp32(op, "scale", scales[i], 4);
  }
}

Fp8Shape check_fp8_matmul(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                          const at::Tensor& b_inv_scale, const OptionalTensor& bias,
                          at::ScalarType dtype) {
  const char* op = "fp8_matmul";
  for (const at::Tensor* t : {&a, &b}) {
    LS_CHECK(is_fp8(*t) && t->dim() == 2 && t->is_contiguous(), ShapeError,
             "{}: operands must be contiguous fp8 matrices, got {} [{}]", op,
             at::toString(t->scalar_type()), fmt::join(t->sizes(), ", "));
  }
  LS_CHECK(a.size(1) == b.size(1) && a.size(1) % 16 == 0 && b.size(0) % 16 == 0, ShapeError,
           "{}: a [{}] and b [{}] must have equally many columns; these and the rows of b must be "
           "multiples of 16",
           op, fmt::join(a.sizes(), ", "), fmt::join(b.sizes(), ", "));
  LS_CHECK(a.scalar_type() == at::kFloat8_e4m3fn || b.scalar_type() == at::kFloat8_e4m3fn,
           ShapeError, "{}: one operand must be float8_e4m3fn", op);
  check_fp32(op, "a_inv_scale", a_inv_scale, 1);
  check_fp32(op, "b_inv_scale", b_inv_scale, 1);
  LS_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat, ShapeError,
           "{}: the result can be bfloat16 or float32, not {}", op, at::toString(dtype));
  LS_CHECK(!bias.has_value() || (bias->dim() == 1 && bias->size(0) == b.size(0)), ShapeError,
           "{}: bias must be [{}]", op, b.size(0));
  return {a.size(0), b.size(0)};
}

}  // namespace longship::ops
