#pragma once
// Scaled dot-product attention with grouped keys.

#include <ATen/core/Tensor.h>

namespace longship::nn {

/// softmax(q k^T / sqrt(D) + mask) v. q [B, Tq, H, D]; k, v [B, Tk, G, D], G divides H, query head
/// h reads key head h / (H/G); mask undefined or additive, broadcastable to [B, 1, Tq, Tk], finite,
/// dtype of q. Returns [B, Tq, H*D]. A fully masked row gives a finite, meaningless average.
/// Softmax in fp32.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mask = {});

/// The additive value of a masked key: finite, so that a fully masked row stays finite, and far
/// below any score.
inline constexpr double kMasked = -1e30;

}  // namespace longship::nn
