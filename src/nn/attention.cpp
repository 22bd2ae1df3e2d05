#include "nn/attention.h"

#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace longship::nn {
namespace {

/// [B, T, G, D] -> view [B, H, T, D]; each key head repeated H/G times in a row.
at::Tensor spread_heads(const at::Tensor& k, int64_t heads) {
  const int64_t batch = k.size(0), length = k.size(1), groups = k.size(2), dim = k.size(3);
  const at::Tensor by_head = k.transpose(1, 2);
  if (groups == heads) return by_head;
  if (groups == 1) return by_head.expand({batch, heads, length, dim});
  return by_head.unsqueeze(2)
      .expand({batch, groups, heads / groups, length, dim})
      .reshape({batch, heads, length, dim});
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mask) {
  const int64_t heads = q.size(2);
  const std::optional<at::Tensor> attn_mask = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor out = at::scaled_dot_product_attention(
      q.transpose(1, 2), spread_heads(k, heads), spread_heads(v, heads), attn_mask);
  return out.transpose(1, 2).reshape({q.size(0), q.size(1), heads * q.size(3)});
}

}  // namespace longship::nn
