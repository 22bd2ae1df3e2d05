#pragma once
// Gated SiLU as one dispatcher operator.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// gate_up [..., 2F] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied: gate in the
/// first F columns, up in the last F. Returns [..., F] in its dtype. Async on the current stream. y
/// = silu(gate) * up, silu(x) = x / (1 + exp(-x)), arithmetic in fp32, one rounding; so silu(gate)
/// is not rounded in between as it is by two operators in bf16. Source: transformers Qwen3MLP.
/// Differentiable once; saved for backward: gate_up.
at::Tensor swiglu(const at::Tensor& gate_up);

/// The gradient: dy [..., F], gate_up [..., 2F] -> d_gate_up [..., 2F]. Not differentiable.
at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

}  // namespace longship::ops
