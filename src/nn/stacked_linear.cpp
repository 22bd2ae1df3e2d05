#include "nn/stacked_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
}

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
  static Variable forward(AutogradContext* ctx, const Variable& x, const at::TensorList& weights,
                          const at::TensorList& biases) {
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
    ctx->saved_data["x_grad"] = x.requires_grad();
    ctx->saved_data["weight_grad"] = weight_grad;
    ctx->save_for_backward({weight_grad ? x : at::Tensor(), weight});
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> rows = ctx->saved_data["rows"].toIntVector();
    const at::Tensor dy = rows_of(grads[0]);
    variable_list out;
    out.push_back(ctx->saved_data["x_grad"].toBool() ? at::mm(dy, saved[1]).view([&] {
      std::vector<int64_t> shape = grads[0].sizes().vec();
      shape.back() = saved[1].size(1);
      return shape;
    }())
                                                     : at::Tensor());
    const bool weight_grad = ctx->saved_data["weight_grad"].toBool();
    append_slices(weight_grad ? at::mm(dy.t(), rows_of(saved[0])) : at::Tensor(), rows, out);
    if (ctx->saved_data["has_bias"].toBool()) {
      append_slices(weight_grad ? dy.sum(0) : at::Tensor(), rows, out);
    }
    return out;
  }
};

}  // namespace

at::Tensor stacked_linear(const at::Tensor& x, at::TensorList weights, at::TensorList biases) {
  const at::ScalarType dtype = x.scalar_type();
  const auto fits = [&](at::TensorList parts) {
    for (const at::Tensor& part : parts) {
      if (part.scalar_type() != dtype) return false;
    }
    return true;
  };
  if (fits(weights) && fits(biases)) return StackedLinear::apply(x, weights, biases);
  // Weights stored in another dtype are cast, and their gradients cast back.
  const at::Tensor bias = biases.empty() ? at::Tensor() : at::cat(biases).to(dtype);
  return at::linear(x, at::cat(weights).to(dtype), bias);
}

}  // namespace longship::nn
