#include "models/groot/vl_rows.h"

#include <ATen/ops/alias.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"
#include "ops/rows.h"

namespace longship::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// Saved: nothing.
class FanOut : public torch::autograd::Function<FanOut> {
 public:
  static variable_list forward(AutogradContext* ctx, const Variable& rows, at::ScalarType dtype,
                               int64_t count) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["dtype"] = rows.scalar_type();
    const at::Tensor cast = rows.to(dtype);
    variable_list out;
    for (int64_t i = 0; i < count; ++i) out.push_back(at::alias(cast));
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::ScalarType dtype = ctx->saved_data["dtype"].toScalarType();
    at::Tensor sum;
    for (const at::Tensor& grad : grads) {
      if (!grad.defined()) continue;
      sum = sum.defined() ? sum.add_(grad) : grad.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    }
    return {sum, Variable(), Variable()};
  }
};

}  // namespace

GrootVlContext pack_vl_rows(const at::Tensor& features, const GrootReadRows& tables,
                            int64_t queries) {
  const int64_t batch = features.size(0), longest = features.size(1), places = batch * longest;
  LS_CHECK(tables.order.numel() == places && tables.text_cu.numel() == batch + 1, ShapeError,
           "groot: tables of {} places and {} samples for backbone features [{}, {}, ...]",
           tables.order.numel(), tables.text_cu.numel() - 1, batch, longest);
  const std::vector<at::Tensor> kinds =
      ops::permute_rows(features.flatten(0, 1), tables.order, tables.back)
          .split_with_sizes({places - tables.image_rows, tables.image_rows});
  const at::Tensor query_cu = at::arange(0, (batch + 1) * queries, queries,
                                         features.options().dtype(at::kInt).requires_grad(false));
  GrootVlContext out;
  out.text = {.rows = kinds[0], .cu = tables.text_cu, .query_cu = query_cu, .longest = longest};
  out.image = {.rows = kinds[1], .cu = tables.image_cu, .query_cu = query_cu, .longest = longest};
  return out;
}

std::vector<at::Tensor> fan_out(const at::Tensor& rows, at::ScalarType dtype, int64_t count) {
  return FanOut::apply(rows, dtype, count);
}

at::Tensor read_packed_rows(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                            const GrootRows& source) {
  const int64_t batch = q.size(0), queries = q.size(1);
  if (q.is_cuda()) {
    return nn::varlen_attention(q.flatten(0, 1), keys, values, source.query_cu, source.cu, queries,
                                source.longest)
        .unflatten(0, {batch, queries});
  }
  LS_CHECK(source.cu.is_cpu(), InternalError, "groot: packed rows on {}", q.device().str());
  const auto bounds = source.cu.accessor<int32_t, 1>();
  std::vector<at::Tensor> out;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t begin = bounds[b], count = bounds[b + 1] - begin;
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, count).unsqueeze(0); };
    out.push_back(count > 0 ? nn::attention(q.narrow(0, b, 1), part(keys), part(values))
                            : at::zeros({1, queries, q.size(2) * q.size(3)}, q.options()));
  }
  return at::cat(out);
}

}  // namespace longship::models
