// Autograd of flow_mix (none) and flow_loss. Saved for backward: v, actions, noise, is_pad, count.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "ops/flow.h"
#include "ops/handle.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using OptionalTensor = std::optional<at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor call_mix(const at::Tensor& actions, const at::Tensor& noise, const at::Tensor& time) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "longship::flow_mix");
  return op.call(actions, noise, time);
}

TensorTriple call_loss(const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise,
                       int64_t dims, const OptionalTensor& is_pad) {
  static const auto op =
      typed_op<TensorTriple(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                            const OptionalTensor&)>("longship::flow_loss");
  return op.call(v, actions, noise, dims, is_pad);
}

at::Tensor call_loss_backward(const at::Tensor& dloss, const at::Tensor& v,
                              const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
                              const OptionalTensor& is_pad, const at::Tensor& count) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, int64_t, const OptionalTensor&, const at::Tensor&)>(
          "longship::flow_loss_backward");
  return op.call(dloss, v, actions, noise, dims, is_pad, count);
}

class FlowLossFunction : public torch::autograd::Function<FlowLossFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const at::Tensor& v,
                             const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
                             const OptionalTensor& is_pad) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [loss, loss_all, count] = call_loss(v, actions, noise, dims, is_pad);
    context->save_for_backward({v, actions, noise, is_pad.value_or(at::Tensor()), count});
    context->saved_data["dims"] = dims;
    context->mark_non_differentiable({loss_all, count});
    return {loss, loss_all, count};
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("flow_loss");
    const tensor_list saved = context->get_saved_variables();
    const OptionalTensor is_pad = saved[3].defined() ? OptionalTensor(saved[3]) : std::nullopt;
    tensor_list result(5);
    result[0] = call_loss_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2],
                                   context->saved_data["dims"].toInt(), is_pad, saved[4]);
    return result;
  }
};

at::Tensor flow_mix_autograd(const at::Tensor& actions, const at::Tensor& noise,
                             const at::Tensor& time) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_mix(actions, noise, time);
}

TensorTriple flow_loss_autograd(const at::Tensor& v, const at::Tensor& actions,
                                const at::Tensor& noise, int64_t dims,
                                const OptionalTensor& is_pad) {
  auto result = FlowLossFunction::apply(v, actions, noise, dims, is_pad);
  return {result[0], result[1], result[2]};
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("flow_mix", flow_mix_autograd);
  m.impl("flow_loss", flow_loss_autograd);
}

}  // namespace

at::Tensor flow_mix(const at::Tensor& actions, const at::Tensor& noise, const at::Tensor& time) {
  return call_mix(actions.contiguous(), noise.contiguous(), time.contiguous());
}

std::tuple<at::Tensor, at::Tensor> flow_loss(const at::Tensor& v, const at::Tensor& actions,
                                             const at::Tensor& noise, int64_t dims,
                                             const std::optional<at::Tensor>& is_pad) {
  const OptionalTensor dense_pad =
      is_pad.has_value() ? OptionalTensor(is_pad->contiguous()) : std::nullopt;
  auto [loss, loss_all, count] =
      call_loss(v.contiguous(), actions.contiguous(), noise.contiguous(), dims, dense_pad);
  return {loss, loss_all};
}

}  // namespace longship::ops
