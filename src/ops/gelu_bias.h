#pragma once
// Bias and GELU as one dispatcher operator.

#include <ATen/core/Tensor.h>

namespace longship::ops {

/// x [..., H] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied; bias [H] fp32 or
/// bf16 independently of x. Returns [..., H] in the dtype of x. Async on the current stream. y =
/// gelu_tanh(x + bias), arithmetic in fp32, one rounding; so x + bias is not rounded in between as
/// it is when a linear layer adds the bias in bf16. Differentiable once in x and bias; saved for
/// backward: x, bias. dbias sums unrounded fp32 values in a fixed order, in the dtype of bias.
at::Tensor gelu_bias(const at::Tensor& x, const at::Tensor& bias);

}  // namespace longship::ops
