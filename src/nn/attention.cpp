#include "nn/attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

namespace longship::nn {

// The H/G query heads of one key head become query rows: row t * H/G + r of group g is head g * H/G
// + r of token t. So keys and values are read once per group instead of once per head, nothing is
// repeated in memory, and the products have H/G times more rows. With G = 1 no transposition is
// needed at all.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mask) {
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), dim = q.size(3);
  const int64_t groups = k.size(2), repeat = heads / groups;
  if (q.is_meta()) {  // LibTorch's composite has operators without meta kernels
    return at::empty({batch, length, heads * dim}, q.options());
  }
  const at::Tensor rows = q.reshape({batch, length, groups, repeat, dim})
                              .transpose(1, 2)
                              .reshape({batch, groups, length * repeat, dim});
  std::optional<at::Tensor> row_mask;
  if (mask.defined()) {
    row_mask = mask.size(2) == 1 || repeat == 1 ? mask : mask.repeat_interleave(repeat, 2);
  }
  const at::Tensor out =
      at::scaled_dot_product_attention(rows, k.transpose(1, 2), v.transpose(1, 2), row_mask);
  return out.reshape({batch, groups, length, repeat * dim})
      .transpose(1, 2)
      .reshape({batch, length, heads * dim});
}

}  // namespace longship::nn
