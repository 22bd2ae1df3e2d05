#include "nn/category_linear.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "base/error.h"
#include "nn/functions.h"
#include "nn/tensor_math.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

class SelectCategories : public torch::autograd::Function<SelectCategories> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& table, const Variable& index) {
    ctx->saved_data["categories"] = table.size(0);
    ctx->save_for_backward({index});
    return select_rows(table, index);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor index = ctx->get_saved_variables()[0];
    std::vector<int64_t> shape = grads[0].sizes().vec();
    shape[0] = ctx->saved_data["categories"].toInt();
    at::Tensor out = at::zeros(shape, grads[0].options());
    // One sample after another: a single call would add equal ids in any order.
    for (int64_t b = 0; b < index.size(0); ++b) {
      out.index_add_(0, index.narrow(0, b, 1), grads[0].narrow(0, b, 1));
    }
    return {out, Variable()};
  }
};

}  // namespace

at::Tensor select_categories(const at::Tensor& table, const at::Tensor& index) {
  return SelectCategories::apply(table, index);
}

CategoryLinear::CategoryLinear(int64_t categories, int64_t in, int64_t out) {
  register_parameter("W", weight, {categories, in, out});
  register_parameter("b", bias, {categories, out});
}

at::Tensor CategoryLinear::forward(const at::Tensor& x, const Categories& categories,
                                   at::ScalarType gemm) const {
  LS_CHECK(x.dim() == 3 && x.size(2) == weight.size(1), ShapeError,
           "category layer: the input must be [B, T, {}], got {} dimensions, the last of {}",
           weight.size(1), x.dim(), x.size(-1));
  LS_CHECK(categories.ids.dim() == 1 && categories.ids.size(0) == x.size(0), ShapeError,
           "category layer: {} samples need as many categories, got {} dimensions of {} elements",
           x.size(0), categories.ids.dim(), categories.ids.numel());
  const at::Tensor ids = categories.same ? categories.ids.narrow(0, 0, 1) : categories.ids;
  const at::Tensor own = select_categories(weight, ids).to(gemm);
  const at::Tensor in = x.to(gemm);
  const at::Tensor product = categories.same ? at::matmul(in, own.squeeze(0)) : at::bmm(in, own);
  return product + select_categories(bias, ids).unsqueeze(1);
}

CategoryMlp::CategoryMlp(int64_t categories, int64_t in, int64_t hidden, int64_t out)
    : layer1(categories, in, hidden), layer2(categories, hidden, out) {
  register_child("layer1", layer1);
  register_child("layer2", layer2);
}

at::Tensor CategoryMlp::forward(const at::Tensor& x, const Categories& categories,
                                at::ScalarType gemm) const {
  // relu by the operator that has a meta kernel; values and gradients are the same.
  const at::Tensor hidden = at::threshold(layer1.forward(x, categories, gemm), 0, 0);
  return layer2.forward(hidden, categories, gemm);
}

}  // namespace longship::nn
