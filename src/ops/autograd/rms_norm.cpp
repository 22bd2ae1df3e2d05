// Autograd of rms_norm. Saved for backward: x, scale, rstd.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "base/error.h"
#include "ops/rms_norm.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using ForwardResult = std::tuple<at::Tensor, at::Tensor>;
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ForwardResult call_forward(const at::Tensor& x, const at::Tensor& scale,
                           const std::optional<at::Tensor>& shift, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("longship::rms_norm", "")
                             .typed<ForwardResult(const at::Tensor&, const at::Tensor&,
                                                  const std::optional<at::Tensor>&, double)>();
  return op.call(x, scale, shift, eps);
}

BackwardResult call_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& rstd, bool has_shift) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("longship::rms_norm_backward", "")
                             .typed<BackwardResult(const at::Tensor&, const at::Tensor&,
                                                   const at::Tensor&, const at::Tensor&, bool)>();
  return op.call(dy, x, scale, rstd, has_shift);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& scale,
                             const std::optional<at::Tensor>& shift, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, rstd] = call_forward(x, scale, shift, eps);
    context->save_for_backward({x, scale, rstd});
    context->saved_data["has_shift"] = shift.has_value();
    context->mark_non_differentiable({rstd});
    return {y, rstd};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    LS_CHECK(!at::GradMode::is_enabled(), InternalError,
             "rms_norm: second derivatives are not implemented");
    const auto saved = context->get_saved_variables();
    const bool has_shift = context->saved_data["has_shift"].toBool();
    auto [dx, dscale, dshift] =
        call_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2], has_shift);
    return {dx, dscale, has_shift ? dshift : at::Tensor(), at::Tensor()};
  }
};

ForwardResult rms_norm_autograd(const at::Tensor& x, const at::Tensor& scale,
                                const std::optional<at::Tensor>& shift, double eps) {
  auto result = RmsNormFunction::apply(x, scale, shift, eps);
  return {result[0], result[1]};
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("rms_norm", rms_norm_autograd);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale,
                    const std::optional<at::Tensor>& shift, double eps) {
  return std::get<0>(call_forward(x.contiguous(), scale, shift, eps));
}

}  // namespace longship::ops
