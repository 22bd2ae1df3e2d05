// Autograd of layer_norm and add_layer_norm. Saved for backward: x or h_out, weight, mean, rstd,
// and the bias for shape and dtype of its gradient.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/handle.h"
#include "ops/layer_norm.h"
#include "ops/norm_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;
using NormResult = std::tuple<Tensor, Tensor, Tensor>;
using NormGradients = std::tuple<Tensor, Tensor, Tensor>;
using AddResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

NormResult call_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  static const auto op = typed_op<NormResult(const Tensor&, const Tensor&, const Tensor&, double)>(
      "longship::layer_norm");
  return op.call(x, weight, bias, eps);
}

NormGradients call_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                 const Tensor& rstd, const Tensor& weight, const Tensor& bias) {
  static const auto op =
      typed_op<NormGradients(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&)>("longship::layer_norm_backward");
  return op.call(dy, x, mean, rstd, weight, bias);
}

AddResult call_add(const Tensor& h, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                   double eps) {
  static const auto op =
      typed_op<AddResult(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double)>(
          "longship::add_layer_norm");
  return op.call(h, branch, weight, bias, eps);
}

NormGradients call_add_backward(const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out,
                                const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                const Tensor& bias) {
  static const auto op =
      typed_op<NormGradients(const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&, const Tensor&)>(
          "longship::add_layer_norm_backward");
  return op.call(dh_out, dy, h_out, mean, rstd, weight, bias);
}

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                             const Tensor& bias, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, mean, rstd] = call_norm(x, weight, bias, eps);
    context->save_for_backward({x, mean, rstd, weight, bias});
    context->set_materialize_grads(false);
    context->mark_non_differentiable({mean, rstd});
    return {y, mean, rstd};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("layer_norm");
    tensor_list result(4);
    if (!gradients[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    std::tie(result[0], result[1], result[2]) = call_norm_backward(
        gradients[0].contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4]);
    return result;
  }
};

class AddLayerNormFunction : public torch::autograd::Function<AddLayerNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const Tensor& h, const Tensor& branch,
                             const Tensor& weight, const Tensor& bias, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [h_out, y, mean, rstd] = call_add(h, branch, weight, bias, eps);
    context->save_for_backward({h_out, mean, rstd, weight, bias});
    context->set_materialize_grads(false);
    context->mark_non_differentiable({mean, rstd});
    return {h_out, y, mean, rstd};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("add_layer_norm");
    tensor_list result(5);
    const Tensor& dh_out = gradients[0];
    const Tensor& dy = gradients[1];
    if (!dh_out.defined() && !dy.defined()) return result;
    const auto saved = context->get_saved_variables();
    if (!dy.defined()) {  // the norm was not used: a plain addition
      result[0] = result[1] = dh_out;
      return result;
    }
    auto [dh, dweight, dbias] =
        call_add_backward(dh_out.defined() ? OptionalTensor(dh_out.contiguous()) : std::nullopt,
                          dy.contiguous(), saved[0], saved[1], saved[2], saved[3], saved[4]);
    result[0] = result[1] = dh;
    result[2] = dweight;
    result[3] = dbias;
    return result;
  }
};

NormResult layer_norm_autograd(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double eps) {
  auto result = LayerNormFunction::apply(x, weight, bias, eps);
  return {result[0], result[1], result[2]};
}

AddResult add_layer_norm_autograd(const Tensor& h, const Tensor& branch, const Tensor& weight,
                                  const Tensor& bias, double eps) {
  auto result = AddLayerNormFunction::apply(h, branch, weight, bias, eps);
  return {result[0], result[1], result[2], result[3]};
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("layer_norm", layer_norm_autograd);
  m.impl("add_layer_norm", add_layer_norm_autograd);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return std::get<0>(call_norm(x.contiguous(), weight, bias, eps));
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& h, const Tensor& branch,
                                         const Tensor& weight, const Tensor& bias, double eps) {
  auto [h_out, y, mean, rstd] = call_add(h.contiguous(), branch.contiguous(), weight, bias, eps);
  return {h_out, y};
}

}  // namespace longship::ops
