// Autograd of geglu, swiglu and gelu_bias. Saved for backward: gate_up; gate_up; x and bias.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "base/error.h"
#include "ops/geglu.h"
#include "ops/gelu_bias.h"
#include "ops/handle.h"
#include "ops/swiglu.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call_geglu(const at::Tensor& gate_up) {
  static const auto op = typed_op<at::Tensor(const at::Tensor&)>("longship::geglu");
  return op.call(gate_up);
}

at::Tensor call_swiglu(const at::Tensor& gate_up) {
  static const auto op = typed_op<at::Tensor(const at::Tensor&)>("longship::swiglu");
  return op.call(gate_up);
}

at::Tensor call_gelu_bias(const at::Tensor& x, const at::Tensor& bias) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("longship::gelu_bias");
  return op.call(x, bias);
}

TensorPair call_gelu_bias_backward(const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& bias) {
  static const auto op =
      typed_op<TensorPair(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "longship::gelu_bias_backward");
  return op.call(dy, x, bias);
}

class GegluFunction : public torch::autograd::Function<GegluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate_up});
    return call_geglu(gate_up);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("geglu");
    return {geglu_backward(gradients[0].contiguous(), context->get_saved_variables()[0])};
  }
};

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate_up});
    return call_swiglu(gate_up);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("swiglu");
    return {swiglu_backward(gradients[0].contiguous(), context->get_saved_variables()[0])};
  }
};

class GeluBiasFunction : public torch::autograd::Function<GeluBiasFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x, bias});
    return call_gelu_bias(x, bias);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("gelu_bias");
    const tensor_list saved = context->get_saved_variables();
    auto [dx, dbias] = call_gelu_bias_backward(gradients[0].contiguous(), saved[0], saved[1]);
    return {dx, dbias};
  }
};

at::Tensor geglu_autograd(const at::Tensor& gate_up) {
  return GegluFunction::apply(gate_up);
}

TensorPair geglu_backward_recompute_autograd(const at::Tensor& dy, const at::Tensor& gate_up) {
  LS_CHECK(!at::GradMode::is_enabled() || !(dy.requires_grad() || gate_up.requires_grad()),
           InternalError, "geglu_backward_recompute: not differentiable");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return geglu_backward_recompute(dy, gate_up);
}

at::Tensor swiglu_autograd(const at::Tensor& gate_up) {
  return SwigluFunction::apply(gate_up);
}

at::Tensor gelu_bias_autograd(const at::Tensor& x, const at::Tensor& bias) {
  return GeluBiasFunction::apply(x, bias);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("geglu", geglu_autograd);
  m.impl("geglu_backward_recompute", geglu_backward_recompute_autograd);
  m.impl("swiglu", swiglu_autograd);
  m.impl("gelu_bias", gelu_bias_autograd);
}

}  // namespace

at::Tensor geglu(const at::Tensor& gate_up) {
  return call_geglu(gate_up.contiguous());
}

at::Tensor geglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("longship::geglu_backward");
  return op.call(dy.contiguous(), gate_up.contiguous());
}

std::tuple<at::Tensor, at::Tensor> geglu_backward_recompute(const at::Tensor& dy,
                                                            const at::Tensor& gate_up) {
  static const auto op = typed_op<TensorPair(const at::Tensor&, const at::Tensor&)>(
      "longship::geglu_backward_recompute");
  return op.call(dy.contiguous(), gate_up.contiguous());
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  return call_swiglu(gate_up.contiguous());
}

at::Tensor swiglu_backward(const at::Tensor& dy, const at::Tensor& gate_up) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("longship::swiglu_backward");
  return op.call(dy.contiguous(), gate_up.contiguous());
}

at::Tensor gelu_bias(const at::Tensor& x, const at::Tensor& bias) {
  return call_gelu_bias(x.contiguous(), bias.contiguous());
}

}  // namespace longship::ops
