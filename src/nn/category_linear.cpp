#include "nn/category_linear.h"

#include <ATen/ops/bmm.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/threshold.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <string>

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

std::vector<int64_t> unused_categories(std::span<const int64_t> used, int64_t total) {
  std::vector<int64_t> out;
  for (int64_t category = 0; category < total; ++category) {
    if (!std::binary_search(used.begin(), used.end(), category)) out.push_back(category);
  }
  return out;
}

at::Tensor local_categories(const at::Tensor& ids, std::span<const int64_t> used) {
  if (used.size() <= 1) return ids;
  // The place of an id is the number of used ones up to it, the first aside. Few are used, and no
  // table has to be on the device.
  at::Tensor place = at::zeros_like(ids);
  for (const int64_t category : used.subspan(1))
    place = place + at::ge(ids, category).to(at::kLong);
  return place;
}

CategoryLinear::CategoryLinear(int64_t categories, int64_t in, int64_t out,
                               const std::vector<int64_t>& used) {
  const bool ascending =
      std::adjacent_find(used.begin(), used.end(), std::greater_equal<>()) == used.end();
  LS_CHECK(used.empty() || (ascending && used.front() >= 0 && used.back() < categories),
           ConfigError,
           "category layer: the used categories must be ascending numbers from 0 to {}; the first "
           "of the {} given is {}, the last {}",
           categories - 1, used.size(), used.front(), used.back());
  const auto unused = categories - static_cast<int64_t>(used.size());
  const int64_t rows = used.empty() ? categories : categories - unused;
  register_parameter("W", weight, {rows, in, out});
  register_parameter("b", bias, {rows, out});
  if (used.empty() || unused == 0) return;
  const std::string suffix(kUnusedCategories);
  register_parameter("W" + suffix, unused_weight_, {unused, in, out});
  register_parameter("b" + suffix, unused_bias_, {unused, out});
}

at::Tensor CategoryLinear::forward(const at::Tensor& x, const Categories& categories,
                                   at::ScalarType gemm) const {
  LS_CHECK(x.dim() == 3 && x.size(2) == weight.size(1), ShapeError,
           "category layer: the input must be [B, T, {}], got {} dimensions, the last of {}",
           weight.size(1), x.dim(), x.size(-1));
  LS_CHECK(categories.ids.dim() == 1 && categories.ids.size(0) == x.size(0), ShapeError,
           "category layer: {} samples need as many categories, got {} dimensions of {} elements",
           x.size(0), categories.ids.dim(), categories.ids.numel());
  const at::Tensor in = x.to(gemm);
  // One for all: read where it is.
  if (weight.size(0) == 1) return at::matmul(in, weight.squeeze(0).to(gemm)) + bias.unsqueeze(1);
  const at::Tensor ids = categories.same ? categories.ids.narrow(0, 0, 1) : categories.ids;
  const at::Tensor own = select_categories(weight, ids).to(gemm);
  const at::Tensor product = categories.same ? at::matmul(in, own.squeeze(0)) : at::bmm(in, own);
  return product + select_categories(bias, ids).unsqueeze(1);
}

CategoryMlp::CategoryMlp(int64_t categories, int64_t in, int64_t hidden, int64_t out,
                         const std::vector<int64_t>& used)
    : layer1(categories, in, hidden, used), layer2(categories, hidden, out, used) {
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
