#include "nn/stacked_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "nn/weight_gradient.h"
#include "ops/join_columns.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Appends the row slices of `all` that belong to the parts whose row counts are given.
void append_slices(const at::Tensor& all, at::IntArrayRef rows, variable_list& out) {
  int64_t begin = 0;
  for (const int64_t count : rows) {
    out.push_back(all.defined() ? all.narrow(0, begin, count) : at::Tensor());
    begin += count;
  }
}

// Saved: x and the stacked weight, which is a view of the parameters.
class StackedLinear : public torch::autograd::Function<StackedLinear> {
 public:
  /// One result, or with `split` one for each weight: views of the one product.
  static variable_list forward(AutogradContext* ctx, const Variable& x,
                               const at::TensorList& weights, const at::TensorList& biases,
                               bool split) {
    const at::Tensor weight = stack_rows(weights);
    const at::Tensor bias = biases.empty() ? at::Tensor() : stack_rows(biases);
    std::vector<int64_t> rows;
    bool weight_grad = false;
    for (const at::Tensor& w : weights) {
      rows.push_back(w.size(0));
      weight_grad = weight_grad || w.requires_grad();
    }
    ctx->saved_data["rows"] = rows;
    ctx->saved_data["has_bias"] = !biases.empty();
    ctx->saved_data["bias_grad"] = std::any_of(
        biases.begin(), biases.end(), [](const at::Tensor& b) { return b.requires_grad(); });
    ctx->saved_data["x_grad"] = x.requires_grad();
    ctx->saved_data["x_shape"] = x.sizes().vec();
    ctx->saved_data["weight_grad"] = weight_grad;
    ctx->save_for_backward({weight_grad ? x : at::Tensor(), weight});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // parts are outputs, not views
    const at::Tensor all = at::linear(x, weight, bias);
    return split ? all.split_with_sizes(rows, -1) : variable_list{all};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const bool weight_grad = ctx->saved_data["weight_grad"].toBool();
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : grads) parts.push_back(rows_of(part));
    const bool bias_grad = ctx->saved_data["bias_grad"].toBool();
    const ops::JoinedColumns dy = ops::join_columns(parts, bias_grad);
    variable_list out;
    out.push_back(ctx->saved_data["x_grad"].toBool()
                      ? at::mm(dy.values, saved[1]).view(ctx->saved_data["x_shape"].toIntVector())
                      : at::Tensor());
    append_slices(
        weight_grad ? weight_gradient(dy.values, rows_of(saved[0]), saved[1]) : at::Tensor(), rows,
        out);
    if (has_bias) append_slices(dy.sums, rows, out);
    out.emplace_back();  // split
    return out;
  }
};

bool all_of_type(at::TensorList parts, at::ScalarType dtype) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const at::Tensor& part) { return part.scalar_type() == dtype; });
}

}  // namespace

at::Tensor stacked_linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  const at::ScalarType dtype = x.scalar_type();
  if (all_of_type(weights, dtype) && all_of_type(biases, dtype)) {
    return StackedLinear::apply(x, weights, biases, false)[0];
  }
  // Weights stored in another dtype are cast, and their gradients cast back.
  const at::Tensor bias = biases.empty() ? at::Tensor() : at::cat(biases).to(dtype);
  return at::linear(x, at::cat(weights).to(dtype), bias);
}

std::vector<at::Tensor> stacked_linear_parts(const at::Tensor& x, at::TensorList weights,
                                             at::TensorList biases) {
  const at::ScalarType dtype = x.scalar_type();
  if (all_of_type(weights, dtype) && all_of_type(biases, dtype)) {
    return StackedLinear::apply(x, weights, biases, true);
  }
  std::vector<int64_t> rows;
  for (const at::Tensor& w : weights) rows.push_back(w.size(0));
  return stacked_linear(x, weights, biases).split_with_sizes(rows, -1);
}

}  // namespace longship::nn
