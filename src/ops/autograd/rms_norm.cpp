// Autograd of rms_norm. Saved for backward: x, scale, shift (shape and dtype of its gradient),
// rstd.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/handle.h"
#include "ops/rms_norm.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using OptionalTensor = std::optional<at::Tensor>;
using ForwardResult = std::tuple<at::Tensor, at::Tensor>;
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ForwardResult call_forward(const at::Tensor& x, const at::Tensor& scale,
                           const OptionalTensor& shift, double eps, double offset) {
  static const auto op =
      typed_op<ForwardResult(const at::Tensor&, const at::Tensor&, const OptionalTensor&, double,
                             double)>("longship::rms_norm");
  return op.call(x, scale, shift, eps, offset);
}

BackwardResult call_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
                             const at::Tensor& rstd, const OptionalTensor& shift, double offset) {
  static const auto op =
      typed_op<BackwardResult(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              const at::Tensor&, const OptionalTensor&, double)>(
          "longship::rms_norm_backward");
  return op.call(dy, x, scale, rstd, shift, offset);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& scale,
                             const OptionalTensor& shift, double eps, double offset) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, rstd] = call_forward(x, scale, shift, eps, offset);
    context->save_for_backward({x, scale, shift.value_or(at::Tensor()), rstd});
    context->saved_data["offset"] = offset;
    context->set_materialize_grads(false);
    context->mark_non_differentiable({rstd});
    return {y, rstd};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("rms_norm");
    tensor_list result(5);
    if (!gradients[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    const OptionalTensor shift = saved[2].defined() ? OptionalTensor(saved[2]) : std::nullopt;
    auto [dx, dscale, dshift] =
        call_backward(gradients[0].contiguous(), saved[0], saved[1], saved[3], shift,
                      context->saved_data["offset"].toDouble());
    result[0] = dx;
    result[1] = dscale;
    if (shift.has_value()) result[2] = dshift;
    return result;
  }
};

ForwardResult rms_norm_autograd(const at::Tensor& x, const at::Tensor& scale,
                                const OptionalTensor& shift, double eps, double offset) {
  auto result = RmsNormFunction::apply(x, scale, shift, eps, offset);
  return {result[0], result[1]};
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("rms_norm", rms_norm_autograd);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& scale, const OptionalTensor& shift,
                    double eps, double offset) {
  return std::get<0>(call_forward(x.contiguous(), scale, shift, eps, offset));
}

}  // namespace longship::ops
