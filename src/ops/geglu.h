#pragma once
// Gated GELU as one dispatcher operator.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace longship::ops {

/// gate_up [..., 2H] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied: gate in the
/// first H columns, up in the last H. Returns [..., H] in its dtype. Async on the current stream. y
/// = gelu_tanh(gate) * up, gelu_tanh(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))),
/// arithmetic in fp32, one rounding. Source: openpi gemma FeedForward (nn.gelu, approximate).
/// Differentiable once; saved for backward: gate_up.
at::Tensor geglu(const at::Tensor& gate_up);

/// The gradient: dy [..., H], gate_up [..., 2H] -> d_gate_up [..., 2H]. Not differentiable.
at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up);

/// The gradient, and y = geglu(gate_up) again from the same pass over memory, for training that
/// does not keep y: (d_gate_up [..., 2H], y [..., H]). Not differentiable.
std::tuple<at::Tensor, at::Tensor> geglu_backward_recompute(const at::Tensor& dy,
                                                            const at::Tensor& gate_up);

}  // namespace longship::ops
