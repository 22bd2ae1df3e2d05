#include "nn/packed_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/mul.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>

#include "base/error.h"
#include "ops/rows.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void check(const at::Tensor& q, const at::Tensor& k) {
  LS_CHECK(q.is_cuda() && q.scalar_type() == at::kBFloat16, InternalError,
           "flash attention is for bf16 tensors on CUDA");
  LS_CHECK(q.size(-2) % k.size(-2) == 0, ShapeError,
           "attention: {} query heads are no multiple of {} key heads", q.size(-2), k.size(-2));
}

// With one key head the query heads can be rows of one head, which reads keys and values once per
// sample. Measured on an H200: faster for the few queries of a suffix, not for a prefix.
bool heads_as_rows(const at::Tensor& q, int64_t length, int64_t num_heads, int64_t groups) {
  constexpr int64_t kRowsUpTo = 1024;
  return groups == 1 && q.is_contiguous() && length * num_heads <= kRowsUpTo;
}

at::Tensor cudnn_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), dim = q.size(3);
  const bool as_rows = heads_as_rows(q, length, heads, k.size(2));
  const at::Tensor rows = as_rows ? q.view({batch, 1, length * heads, dim}) : q.transpose(1, 2);
  const at::Tensor out = std::get<0>(at::_scaled_dot_product_cudnn_attention(
      rows, k.transpose(1, 2), v.transpose(1, 2), std::nullopt, /*compute_log_sumexp=*/true));
  return (as_rows ? out : out.transpose(1, 2)).reshape({batch, length, heads * dim});
}

at::Tensor last(const at::Tensor& cu) {
  return cu.narrow(0, cu.size(0) - 1, 1);
}

// The library's varlen kernels leave rows behind the last sample as they found the memory; here
// they are zero, in the result and in the gradients. Saved: q, k, v, the result, the softmax
// statistics.
class VarlenAttention : public torch::autograd::Function<VarlenAttention> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k,
                          const Variable& v, const Variable& cu_q, const Variable& cu_k,
                          int64_t max_q, int64_t max_k, bool causal) {
    auto [out, statistics, seed, unused, debug] =
        at::_flash_attention_forward(q, k, v, cu_q, cu_k, max_q, max_k, 0.0, causal, false);
    ops::zero_tail_(out, last(cu_q));
    ctx->saved_data["max_q"] = max_q;
    ctx->saved_data["max_k"] = max_k;
    ctx->saved_data["causal"] = causal;
    ctx->save_for_backward({q, k, v, out, statistics, seed, unused, cu_q, cu_k});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list s = ctx->get_saved_variables();
    auto [dq, dk, dv] = at::_flash_attention_backward(
        grads[0].contiguous(), s[0], s[1], s[2], s[3], s[4], s[7], s[8],
        ctx->saved_data["max_q"].toInt(), ctx->saved_data["max_k"].toInt(), 0.0,
        ctx->saved_data["causal"].toBool(), s[5], s[6]);
    ops::zero_tail_(dq, last(s[7]));
    ops::zero_tail_(dk, last(s[8]));
    ops::zero_tail_(dv, last(s[8]));
    return {dq, dk, dv, Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

std::string flash_refusal(int64_t head_dim, at::ScalarType dtype) {
  constexpr int64_t kStep = 8, kWidest = 256;
  if (dtype != at::kBFloat16) {
    return fmt::format("flash kernels are for bf16, not {}",
                       dtype == at::kFloat ? "fp32" : c10::toString(dtype));
  }
  if (head_dim % kStep != 0) {
    return fmt::format("heads of {} are no multiple of {}", head_dim, kStep);
  }
  if (head_dim > kWidest) return fmt::format("heads of {} are wider than {}", head_dim, kWidest);
  return {};
}

bool flash_takes(const at::Tensor& q) {
  return q.is_cuda() && flash_refusal(q.size(-1), q.scalar_type()).empty();
}

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check(q, k);
  if (!at::globalContext().deterministicAlgorithms()) return cudnn_attention(q, k, v);
  return std::get<0>(at::_flash_attention_forward(q, k, v, std::nullopt, std::nullopt, q.size(1),
                                                  k.size(1), 0.0, false, false))
      .flatten(2, 3);
}

at::Tensor varlen_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cu_q, const at::Tensor& cu_k, int64_t max_q,
                            int64_t max_k, bool causal) {
  check(q, k);
  const int64_t num_heads = q.size(1);
  // Heads as rows have no order that a causal mask could follow.
  if (!causal && heads_as_rows(q, max_q, num_heads, k.size(1))) {
    return VarlenAttention::apply(q.view({-1, 1, q.size(2)}), k, v, at::mul(cu_q, num_heads), cu_k,
                                  max_q * num_heads, max_k, false)
        .view({q.size(0), -1});
  }
  return VarlenAttention::apply(q, k, v, cu_q, cu_k, max_q, max_k, causal).flatten(1, 2);
}

}  // namespace longship::nn
