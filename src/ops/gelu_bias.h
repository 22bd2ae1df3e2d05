#pragma once
// Bias and GELU as one dispatcher operator, alone or with dropout behind them.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// x [..., H] fp32, bf16 or fp64 (fp64 on the CPU only), contiguous or copied; bias [H] fp32 or
/// bf16 independently of x. Returns [..., H] in the dtype of x. Async on the current stream. y =
/// gelu_tanh(x + bias), arithmetic in fp32, one rounding; so x + bias is not rounded in between as
/// it is when a linear layer adds the bias in bf16. Differentiable once in x and bias; saved for
/// backward: x, bias. dbias sums unrounded fp32 values in a fixed order, in the dtype of bias.
at::Tensor gelu_bias(const at::Tensor& x, const at::Tensor& bias);

/// dropout(gelu_bias(x, bias), keys, site, p) of x [B, ..., H] in one pass, with the same two
/// roundings; keys [B] int64 (ops/dropout.h). Differentiable once in x and bias: dy is rounded once
/// after the mask, as in dropout. Saved for backward: x, bias, keys.
at::Tensor gelu_bias_dropout(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& keys,
                             int64_t site, double p);

}  // namespace longship::ops
