// CPU implementation of the FP8 operators: the oracle of the CUDA kernels. Rounding is that of
// ATen's casts to fp8, products are fp32 products of the dequantised values.
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/fp8.h"
#include "ops/fp8_check.h"

namespace longship::ops {
namespace {

float amax_of(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0f : at::amax(at::abs(x)).item<float>();
}

float target_of(at::ScalarType format, double margin) {
  return static_cast<float>(fp8_max(format) * std::exp2(-margin));
}

float scale_of(float amax, float target) {
  constexpr float kLargest = 1.2676506e30f;  // 2^100
  if (amax == 0.0f) return 1.0f;
  const float scale = target / amax;
  return scale > kLargest ? kLargest : scale;
}

/// The larger of two amaxes; NaN above everything, as their bits order.
float larger(float a, float b) {
  return std::bit_cast<uint32_t>(a) > std::bit_cast<uint32_t>(b) ? a : b;
}

/// fp8(x * scale) for x fp32.
at::Tensor to_fp8(const at::Tensor& x, float scale, at::ScalarType format) {
  const double limit = fp8_max(format);
  const at::Tensor nan = at::full({}, std::numeric_limits<float>::quiet_NaN(), x.options());
  return at::where(at::isfinite(x), at::clamp(x.mul(scale), -limit, limit), nan).to(format);
}

/// Quantises x (fp32) into the outputs; notes its amax in the state.
void write(const at::Tensor& x, const OptionalTensor& states, int64_t index, bool record,
           double margin, const Fp8Outputs& outputs) {
  const float amax = amax_of(x);
  float target = target_of(outputs.format(), margin);
  float scale = 0.0f;
  if (states.has_value()) {
    float* row = states->mutable_data_ptr<float>() + index * states->size(1);
    scale = row[0];
    target = row[1];
    if (record) row[2] = larger(row[2], amax);
  }
  if (scale == 0.0f) scale = scale_of(amax, target);
  const at::Tensor q = to_fp8(x, scale, outputs.format());
  if (outputs.q.has_value()) outputs.q->copy_(q);
  if (outputs.q_t.has_value()) outputs.q_t->copy_(q.t());
  outputs.inv_scale.fill_(1.0f / scale);
}

at::Tensor fp8_amax_cpu(const at::Tensor& x) {
  return at::full({1}, amax_of(x.to(at::kFloat)), x.options().dtype(at::kFloat));
}

void fp8_quantize_cpu(const at::Tensor& x, const OptionalTensor& states, int64_t index, bool record,
                      double margin, const OptionalTensor& q, const OptionalTensor& q_t,
                      const at::Tensor& inv_scale, const OptionalTensor& column_sums) {
  const Fp8Outputs outputs{q, q_t, inv_scale};
  check_fp8_quantize(x, states, index, outputs, column_sums);
  write(x.to(at::kFloat), states, index, record, margin, outputs);
  if (column_sums.has_value()) column_sums->copy_(x.to(at::kDouble).sum({0}, false));
}

void fp8_geglu_quantize_cpu(const at::Tensor& gate_up, const OptionalTensor& states, int64_t index,
                            bool record, double margin, const OptionalTensor& q,
                            const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  const Fp8Outputs outputs{q, q_t, inv_scale};
  const Fp8Shape shape = check_fp8_geglu(gate_up, states, index, outputs);
  // In fp64: 1 + tanh(u) loses its digits in fp32 where the gate is far below zero.
  const at::Tensor both = gate_up.to(at::kDouble);
  const at::Tensor gate = both.narrow(1, 0, shape.cols);
  const at::Tensor up = both.narrow(1, shape.cols, shape.cols);
  write(at::gelu(gate, "tanh").mul(up).to(at::kFloat), states, index, record, margin, outputs);
}

void fp8_geglu_backward_quantize_cpu(const at::Tensor& dy, const at::Tensor& gate_up,
                                     const OptionalTensor& states, int64_t index, bool record,
                                     double margin, const OptionalTensor& q,
                                     const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  const Fp8Outputs outputs{q, q_t, inv_scale};
  const Fp8Shape shape = check_fp8_geglu_backward(dy, gate_up, states, index, outputs);
  const int64_t hidden = shape.cols / 2;
  const at::Tensor both = gate_up.to(at::kDouble);
  const at::Tensor gate = both.narrow(1, 0, hidden);
  const at::Tensor up = both.narrow(1, hidden, hidden);
  const at::Tensor d = dy.to(at::kDouble);
  at::Tensor gradient = at::empty(both.sizes(), both.options());
  gradient.narrow(1, 0, hidden).copy_(at::gelu_backward(d.mul(up), gate, "tanh"));
  gradient.narrow(1, hidden, hidden).copy_(d.mul(at::gelu(gate, "tanh")));
  write(gradient.to(at::kFloat), states, index, record, margin, outputs);
}

void fp8_quantize_weights_cpu(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                              at::TensorList scales, double margin) {
  check_fp8_weights(weights, q, q_t, scales);
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor w = weights[i].to(at::kFloat);
    const OptionalTensor rows = q[i];
    const OptionalTensor transposed = q_t.empty() ? OptionalTensor() : OptionalTensor(q_t[i]);
    write(w, std::nullopt, 0, false, margin, {rows, transposed, scales[i].narrow(0, 0, 1)});
    scales[i].narrow(0, 1, 1).fill_(amax_of(w));
  }
}

void fp8_update_states_cpu(const at::Tensor& states) {
  check_fp8_states(states);
  const int64_t history = states.size(1) - 2;
  for (int64_t i = 0; i < states.size(0); ++i) {
    float* row = states.mutable_data_ptr<float>() + i * states.size(1);
    float* amaxes = row + 2;
    float amax = 0.0f;
    for (int64_t k = history - 1; k >= 0; --k) {
      if (std::isfinite(amaxes[k])) amax = std::max(amax, amaxes[k]);
      if (k + 1 < history) amaxes[k + 1] = amaxes[k];
    }
    amaxes[0] = 0.0f;
    row[0] = amax == 0.0f ? 0.0f : scale_of(amax, row[1]);
  }
}

at::Tensor fp8_matmul_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                          const at::Tensor& b_inv_scale, const OptionalTensor& bias,
                          at::ScalarType dtype, bool /*fast_accumulation*/) {
  check_fp8_matmul(a, b, a_inv_scale, b_inv_scale, bias, dtype);
  const at::Tensor left = a.to(at::kFloat).mul(a_inv_scale);
  const at::Tensor right = b.to(at::kFloat).mul(b_inv_scale);
  at::Tensor y = at::mm(left, right.t());
  if (bias.has_value()) y.add_(bias->to(dtype).to(at::kFloat));
  return y.to(dtype);
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("fp8_amax", fp8_amax_cpu);
  m.impl("fp8_quantize", fp8_quantize_cpu);
  m.impl("fp8_geglu_quantize", fp8_geglu_quantize_cpu);
  m.impl("fp8_geglu_backward_quantize", fp8_geglu_backward_quantize_cpu);
  m.impl("fp8_quantize_weights", fp8_quantize_weights_cpu);
  m.impl("fp8_update_states", fp8_update_states_cpu);
  m.impl("fp8_matmul", fp8_matmul_cpu);
}

}  // namespace
}  // namespace longship::ops
