#include "nn/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>

#include <optional>
#include <tuple>

#include "base/error.h"

namespace longship::nn {
namespace {

void check(const at::Tensor& q, const at::Tensor& k) {
  LS_CHECK(q.is_cuda() && q.scalar_type() == at::kBFloat16, InternalError,
           "flash attention is for bf16 tensors on CUDA");
  LS_CHECK(q.size(-2) % k.size(-2) == 0, ShapeError,
           "attention: {} query heads are no multiple of {} key heads", q.size(-2), k.size(-2));
}

at::Tensor cudnn_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), dim = q.size(3);
  // With one key head the query heads can be rows of one head, which reads keys and values once
  // per sample. Measured on an H200: faster for the few queries of a suffix, not for a prefix.
  constexpr int64_t kRowsUpTo = 1024;
  const bool heads_as_rows = k.size(2) == 1 && q.is_contiguous() && length * heads <= kRowsUpTo;
  const at::Tensor rows =
      heads_as_rows ? q.view({batch, 1, length * heads, dim}) : q.transpose(1, 2);
  const at::Tensor out = std::get<0>(at::_scaled_dot_product_cudnn_attention(
      rows, k.transpose(1, 2), v.transpose(1, 2), std::nullopt, /*compute_log_sumexp=*/true));
  return (heads_as_rows ? out : out.transpose(1, 2)).reshape({batch, length, heads * dim});
}

}  // namespace

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check(q, k);
  if (!at::globalContext().deterministicAlgorithms()) return cudnn_attention(q, k, v);
  return std::get<0>(at::_flash_attention_forward(q, k, v, std::nullopt, std::nullopt, q.size(1),
                                                  k.size(1), 0.0, false, false))
      .flatten(2, 3);
}

at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t max_q,
                            int64_t max_k) {
  check(q, k);
  return std::get<0>(
             at::_flash_attention_forward(q, k, v, cu_q, cu_k, max_q, max_k, 0.0, false, false))
      .flatten(1, 2);
}

}  // namespace longship::nn
