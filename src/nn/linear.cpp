#include "nn/linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/norm.h"
#include "nn/weight_gradient.h"
#include "ops/gradient_place.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the library's own does, with the weight's gradient in the place that is offered for it.
class PlacedLinear : public torch::autograd::Function<PlacedLinear> {
 public:
  /// `bias`: one or none.
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& weight,
                          const at::TensorList& bias) {
    ctx->saved_data["x_grad"] = x.requires_grad();
    ctx->saved_data["has_bias"] = !bias.empty();
    ctx->saved_data["bias_grad"] = !bias.empty() && bias.front().requires_grad();
    ctx->saved_data["x_shape"] = x.sizes().vec();
    ctx->save_for_backward({x, weight});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return at::linear(x, weight, bias.empty() ? at::Tensor() : bias.front());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dy = rows_of(grads[0]);
    variable_list out(ctx->saved_data["has_bias"].toBool() ? 3 : 2);
    if (ctx->saved_data["x_grad"].toBool()) {
      out[0] = at::mm(dy, saved[1]).view(ctx->saved_data["x_shape"].toIntVector());
    }
    out[1] = weight_gradient(dy, rows_of(saved[0]), saved[1]);
    if (ctx->saved_data["bias_grad"].toBool()) out[2] = dy.sum(0);
    return out;
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType dtype = x.scalar_type();
  if (at::GradMode::is_enabled() && weight.requires_grad() && weight.scalar_type() == dtype &&
      (!bias.defined() || bias.scalar_type() == dtype) && ops::gradient_places_are_used()) {
    return PlacedLinear::apply(x, weight, bias.defined() ? at::TensorList(bias) : at::TensorList());
  }
  return at::linear(x, weight.to(dtype), bias.defined() ? bias.to(dtype) : bias);
}

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  register_parameter("weight", weight, {out, in});
  if (with_bias) register_parameter("bias", bias, {out});
}

LayerNorm::LayerNorm(int64_t width, double eps) : eps_(eps) {
  register_parameter("weight", weight, {width});
  register_parameter("bias", bias, {width});
}

at::Tensor LayerNorm::forward(const at::Tensor& x, bool fused) const {
  return layer_norm(x, weight, bias, eps_, fused);
}

}  // namespace longship::nn
