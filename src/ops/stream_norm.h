#pragma once
// Layer normalisation between a residual stream and products of another dtype, alone or after a
// branch with its bias and its dropouts was added to the stream. Each function is one dispatcher
// operator with a backward operator of its own.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace longship::ops {

/// What a branch adds to a stream h [B, ..., D]. Undefined tensors are absent.
struct StreamBranch {
  at::Tensor values;     // of the sizes of h, in the product's dtype, contiguous or copied
  at::Tensor bias = {};  // [D], fp32 or bf16 (fp64 with fp64)
  at::Tensor keys = {};  // [B] int64, one per sample: masks of dropout_mask()
  std::vector<int64_t> sites = {};  // of one or two dropouts, the first applied first; empty: none
  double p = 0;                     // their probability; 0: none
};

/// x_hat * factor + shift with factor = scale, or 1 + scale rounded to the dtype of scale. scale,
/// shift [D] or [G, D], rows strided or not, fp32 or bf16 independently (fp64 with fp64); G = B, or
/// 1. Undefined: factor 1, shift 0.
struct StreamNorm {
  at::Tensor scale = {}, shift = {};
  bool plus_one = true;
  double eps = 1e-5;
};

/// (h, y): the stream as it is, so that its other reader's gradient is added in the same pass, and
/// y = (h - mean) * rstd * factor + shift in `dtype`, rstd = 1 / sqrt(mean((h - mean)^2) + eps). h
/// [..., D], contiguous or copied, and `dtype` are fp32 or bf16 independently, or both fp64 (CPU
/// only); arithmetic in fp32 (fp64), the variance from deviations. Source: torch LayerNorm;
/// diffusers' AdaLayerNorm with `plus_one`. Differentiable once in h, scale and shift, through
/// either or both results; gradients of parameters in their dtype. Saved for backward: h, mean,
/// rstd, scale, and shift for its shape. CUDA: async on the current stream, deterministic.
std::pair<at::Tensor, at::Tensor> stream_norm(const at::Tensor& h, const StreamNorm& norm,
                                              at::ScalarType dtype);

/// (x, y): x = h + v, rounded once to the dtype of h, and y = stream_norm(x, norm, dtype of the
/// branch); v is values + bias rounded to the dtype of the branch, then dropout(v, keys, site, p)
/// for every site. Differentiable in h, values, bias, scale and shift. The gradient of the branch
/// is rounded to its dtype before the masks are applied, last site first; dbias sums the rounded
/// gradient of values. Saved for backward: x, mean, rstd, keys, scale, shift, bias.
std::pair<at::Tensor, at::Tensor> add_stream_norm(const at::Tensor& h, const StreamBranch& branch,
                                                  const StreamNorm& norm);

/// h + v, where no norm follows. Saved for backward: keys, bias.
at::Tensor add_dropped(const at::Tensor& h, const StreamBranch& branch);

}  // namespace longship::ops
