#pragma once
// Flow matching: the noisy actions and the loss of the predicted velocity, as dispatcher operators.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace longship::ops {

/// actions, noise [B, A, D] one dtype (fp32, bf16; fp64 on the CPU), contiguous or copied; time [B]
/// fp32 (or fp64 beside fp64). Returns x_t = t noise + (1 - t) actions [B, A, D] in their dtype:
/// arithmetic in fp32, one rounding. Async on the current stream. Source: openpi pi0 compute_loss.
/// Not differentiable: the result never requires grad.
at::Tensor flow_mix(const at::Tensor& actions, const at::Tensor& noise, const at::Tensor& time);

/// v [B, A, D] fp32 or bf16 (fp64 on the CPU), contiguous or copied; actions, noise [B, A, D] one
/// dtype of their own; is_pad [B, A] bool or absent; 1 <= dims <= D. Returns (loss, loss_all), fp32
/// scalars (fp64 for fp64 v), async on the current stream. u = noise - actions. loss = sum over the
/// steps that are not padding and the first `dims` columns of (v - u)^2, divided by dims * max(1,
/// number of those steps). loss_all: the same over all D columns, for comparison with
/// implementations that train the padded columns too; not differentiable. Padded steps may hold
/// anything, NaN included. Deterministic: partial sums in a fixed order.
/// loss is differentiable once in v: dv = 2 (v - u) dloss / (dims * max(1, steps)) in the first
/// `dims` columns, else 0, in the dtype of v. Saved for backward: v, actions, noise, is_pad and the
/// divisor. Source: openpi pi0 compute_loss (mean of squares).
std::tuple<at::Tensor, at::Tensor> flow_loss(
    const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
    const std::optional<at::Tensor>& is_pad = std::nullopt);

}  // namespace longship::ops
