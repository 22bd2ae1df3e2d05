// CUDA launches of the FP8 operators: checks, scratch memory, kernels on the current stream. The
// GEMM is cuBLASLt's, through at::_scaled_mm.
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cmath>

#include "base/error.h"
#include "kernels/fp8/fp8.h"
#include "ops/cuda/launch.h"
#include "ops/fp8.h"
#include "ops/fp8_check.h"

namespace longship::ops {
namespace {

/// `x` itself, or a copy where it does not begin at a multiple of 16 bytes.
at::Tensor aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 ? x : x.clone();
}

uint8_t* bytes_of(const OptionalTensor& q, const char* op) {
  if (!q.has_value()) return nullptr;
  LS_CHECK(reinterpret_cast<uintptr_t>(q->const_data_ptr()) % 16 == 0, ShapeError,
           "{}: the address of a result must be a multiple of 16", op);
  return static_cast<uint8_t*>(q->mutable_data_ptr());
}

kernels::Fp8Format format_of(at::ScalarType type) {
  return type == at::kFloat8_e5m2 ? kernels::Fp8Format::kE5M2 : kernels::Fp8Format::kE4M3;
}

float target_of(at::ScalarType format, double margin) {
  return static_cast<float>(fp8_max(format) * std::exp2(-margin));
}

/// `partials` is scratch that must live until the launch.
kernels::Fp8ScaleArgs scale_args(const OptionalTensor& states, int64_t index, bool record,
                                 double margin, const Fp8Outputs& outputs,
                                 const at::Tensor& partials) {
  kernels::Fp8ScaleArgs args;
  if (states.has_value()) {
    float* row = states->mutable_data_ptr<float>() + index * states->size(1);
    args.state = row;
    args.record = record ? row + 2 : nullptr;
  }
  args.target = target_of(outputs.format(), margin);
  args.partials = partials.mutable_data_ptr<float>();
  args.inv_scale = outputs.inv_scale.mutable_data_ptr<float>();
  return args;
}

at::Tensor new_partials(const at::Tensor& x) {
  return at::empty({kernels::kFp8AmaxPartials}, x.options().dtype(at::kFloat));
}

at::Tensor fp8_amax_cuda(const at::Tensor& x) {
  LS_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, ShapeError,
           "fp8_amax: x must be bfloat16 or float32, got {}", at::toString(x.scalar_type()));
  LS_CHECK(x.is_contiguous(), ShapeError, "fp8_amax: x must be contiguous");
  const c10::cuda::CUDAGuard guard(x.device());
  const at::Tensor partials = new_partials(x);
  at::Tensor amax = at::empty({1}, partials.options());
  kernels::Fp8AmaxArgs args;
  args.x = x.const_data_ptr();
  args.num_elements = x.numel();
  args.element = x.scalar_type() == at::kFloat ? kernels::ElementType::kFloat32
                                               : kernels::ElementType::kBFloat16;
  args.partials = partials.mutable_data_ptr<float>();
  args.amax = amax.mutable_data_ptr<float>();
  check_launch("fp8_amax", kernels::fp8_amax(args, c10::cuda::getCurrentCUDAStream()));
  return amax;
}

void fp8_quantize_cuda(const at::Tensor& x, const OptionalTensor& states, int64_t index,
                       bool record, double margin, const OptionalTensor& q,
                       const OptionalTensor& q_t, const at::Tensor& inv_scale,
                       const OptionalTensor& column_sums) {
  const char* op = "fp8_quantize";
  const Fp8Outputs outputs{q, q_t, inv_scale};
  const Fp8Shape shape = check_fp8_quantize(x, states, index, outputs, column_sums);
  const c10::cuda::CUDAGuard guard(x.device());
  if (shape.rows == 0 || shape.cols == 0) {
    inv_scale.fill_(1.0f);
    if (column_sums.has_value()) column_sums->zero_();
    return;
  }
  const at::Tensor in = aligned(x);
  const at::Tensor partials = new_partials(x);
  at::Tensor sum_partials;
  kernels::Fp8QuantizeArgs args;
  args.x = in.const_data_ptr();
  args.q = bytes_of(q, op);
  args.q_t = bytes_of(q_t, op);
  if (column_sums.has_value()) {
    const int64_t num_tiles = (shape.rows + kernels::kFp8Tile - 1) / kernels::kFp8Tile;
    sum_partials = at::empty({num_tiles, shape.cols}, partials.options());
    args.sum_partials = sum_partials.mutable_data_ptr<float>();
    args.column_sums = column_sums->mutable_data_ptr();
    args.sums_element = column_sums->scalar_type() == at::kFloat ? kernels::ElementType::kFloat32
                                                                 : kernels::ElementType::kBFloat16;
  }
  args.rows = shape.rows;
  args.cols = shape.cols;
  args.format = format_of(outputs.format());
  args.scale = scale_args(states, index, record, margin, outputs, partials);
  check_launch(op, kernels::fp8_quantize(args, c10::cuda::getCurrentCUDAStream()));
}

/// `dy` undefined: forward.
void launch_geglu(const char* op, const at::Tensor& dy, const at::Tensor& gate_up,
                  const OptionalTensor& states, int64_t index, bool record, double margin,
                  const Fp8Outputs& outputs) {
  const c10::cuda::CUDAGuard guard(gate_up.device());
  if (gate_up.numel() == 0) {
    outputs.inv_scale.fill_(1.0f);
    return;
  }
  const at::Tensor in = aligned(gate_up);
  const at::Tensor gradient = dy.defined() ? aligned(dy) : dy;
  const at::Tensor partials = new_partials(gate_up);
  kernels::Fp8GegluArgs args;
  args.dy = gradient.defined() ? gradient.const_data_ptr() : nullptr;
  args.gate_up = in.const_data_ptr();
  args.q = bytes_of(outputs.q, op);
  args.q_t = bytes_of(outputs.q_t, op);
  args.rows = gate_up.size(0);
  args.hidden = gate_up.size(1) / 2;
  args.format = format_of(outputs.format());
  args.scale = scale_args(states, index, record, margin, outputs, partials);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  check_launch(op, dy.defined() ? kernels::fp8_geglu_backward_quantize(args, stream)
                                : kernels::fp8_geglu_quantize(args, stream));
}

void fp8_geglu_quantize_cuda(const at::Tensor& gate_up, const OptionalTensor& states, int64_t index,
                             bool record, double margin, const OptionalTensor& q,
                             const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  const Fp8Outputs outputs{q, q_t, inv_scale};
  check_fp8_geglu(gate_up, states, index, outputs);
  launch_geglu("fp8_geglu_quantize", at::Tensor(), gate_up, states, index, record, margin, outputs);
}

void fp8_geglu_backward_quantize_cuda(const at::Tensor& dy, const at::Tensor& gate_up,
                                      const OptionalTensor& states, int64_t index, bool record,
                                      double margin, const OptionalTensor& q,
                                      const OptionalTensor& q_t, const at::Tensor& inv_scale) {
  const Fp8Outputs outputs{q, q_t, inv_scale};
  check_fp8_geglu_backward(dy, gate_up, states, index, outputs);
  launch_geglu("fp8_geglu_backward_quantize", dy, gate_up, states, index, record, margin, outputs);
}

void fp8_quantize_weights_cuda(at::TensorList weights, at::TensorList q, at::TensorList q_t,
                               at::TensorList scales, double margin) {
  const char* op = "fp8_quantize_weights";
  check_fp8_weights(weights, q, q_t, scales);
  if (weights.empty()) return;
  const c10::cuda::CUDAGuard guard(weights[0].device());
  std::vector<at::Tensor> inputs;  // keeps copies until the launch
  std::vector<kernels::Fp8WeightArgs> args;
  for (size_t i = 0; i < weights.size(); ++i) {
    LS_CHECK(weights[i].size(0) <= INT32_MAX && weights[i].size(1) <= INT32_MAX, ShapeError,
             "{}: weight {} is too large", op, i);
    inputs.push_back(aligned(weights[i]));
    args.push_back({inputs.back().const_data_ptr(), bytes_of(q[i], op),
                    q_t.empty() ? nullptr : bytes_of(q_t[i], op),
                    scales[i].mutable_data_ptr<float>(), weights[i].size(0), weights[i].size(1)});
  }
  check_launch(op, kernels::fp8_quantize_weights(args.data(), static_cast<int64_t>(args.size()),
                                                 target_of(at::kFloat8_e4m3fn, margin),
                                                 c10::cuda::getCurrentCUDAStream()));
}

void fp8_update_states_cuda(const at::Tensor& states) {
  check_fp8_states(states);
  const c10::cuda::CUDAGuard guard(states.device());
  check_launch("fp8_update_states",
               kernels::fp8_update_states(states.mutable_data_ptr<float>(), states.size(0),
                                          states.size(1) - 2, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor fp8_matmul_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_inv_scale,
                           const at::Tensor& b_inv_scale, const OptionalTensor& bias,
                           at::ScalarType dtype, bool fast_accumulation) {
  const Fp8Shape shape = check_fp8_matmul(a, b, a_inv_scale, b_inv_scale, bias, dtype);
  LS_CHECK(!bias.has_value() || dtype == at::kBFloat16, ShapeError,
           "fp8_matmul: a bias needs a bfloat16 result on CUDA");
  const c10::cuda::CUDAGuard guard(a.device());
  // cuBLASLt takes no empty operands. An empty sum with a bias does not occur.
  if (shape.rows == 0 || shape.cols == 0 || a.size(1) == 0) {
    return at::zeros({shape.rows, shape.cols}, a.options().dtype(dtype));
  }
  const OptionalTensor row = bias.has_value() ? OptionalTensor(bias->to(dtype)) : std::nullopt;
  return at::_scaled_mm(a, b.t(), a_inv_scale, b_inv_scale, row, std::nullopt, dtype,
                        fast_accumulation);
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("fp8_amax", fp8_amax_cuda);
  m.impl("fp8_quantize", fp8_quantize_cuda);
  m.impl("fp8_geglu_quantize", fp8_geglu_quantize_cuda);
  m.impl("fp8_geglu_backward_quantize", fp8_geglu_backward_quantize_cuda);
  m.impl("fp8_quantize_weights", fp8_quantize_weights_cuda);
  m.impl("fp8_update_states", fp8_update_states_cuda);
  m.impl("fp8_matmul", fp8_matmul_cuda);
}

}  // namespace
}  // namespace longship::ops
