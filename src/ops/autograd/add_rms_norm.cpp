// Autograd of add_rms_norm and add_gate. Saved for backward: see rms_norm.h.
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
using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;
using NormResult = std::tuple<Tensor, Tensor, Tensor>;
using NormGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using GateGradients = std::tuple<Tensor, Tensor>;

OptionalTensor optional(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

Tensor contiguous(const Tensor& gradient) {
  return gradient.defined() ? gradient.contiguous() : gradient;
}

NormResult call_norm(const Tensor& h, const Tensor& branch, const OptionalTensor& gate,
                     const Tensor& scale, const OptionalTensor& shift, double eps, double offset) {
  static const auto op =
      typed_op<NormResult(const Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                          const OptionalTensor&, double, double)>("longship::add_rms_norm");
  return op.call(h, branch, gate, scale, shift, eps, offset);
}

NormGradients call_norm_backward(const OptionalTensor& dh_out, const Tensor& dy,
                                 const Tensor& h_out, const Tensor& rstd,
                                 const OptionalTensor& branch, const OptionalTensor& gate,
                                 const Tensor& scale, const OptionalTensor& shift, double offset) {
  static const auto op =
      typed_op<NormGradients(const OptionalTensor&, const Tensor&, const Tensor&, const Tensor&,
                             const OptionalTensor&, const OptionalTensor&, const Tensor&,
                             const OptionalTensor&, double)>("longship::add_rms_norm_backward");
  return op.call(dh_out, dy, h_out, rstd, branch, gate, scale, shift, offset);
}

Tensor call_gate(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  static const auto op =
      typed_op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&)>("longship::add_gate");
  return op.call(h, branch, gate);
}

GateGradients call_gate_backward(const Tensor& dout, const Tensor& branch, const Tensor& gate) {
  static const auto op = typed_op<GateGradients(const Tensor&, const Tensor&, const Tensor&)>(
      "longship::add_gate_backward");
  return op.call(dout, branch, gate);
}

/// Gradients of h, branch and gate in out = h + branch * gate.
void addition_gradients(const Tensor& dout, const Tensor& branch, const Tensor& gate,
                        tensor_list& result) {
  result[0] = dout;
  if (gate.defined()) {
    std::tie(result[1], result[2]) = call_gate_backward(dout, branch, gate);
  } else {
    result[1] = dout;
  }
}

class AddRmsNormFunction : public torch::autograd::Function<AddRmsNormFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const Tensor& h, const Tensor& branch,
                             const OptionalTensor& gate, const Tensor& scale,
                             const OptionalTensor& shift, double eps, double offset) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [h_out, y, rstd] = call_norm(h, branch, gate, scale, shift, eps, offset);
    context->save_for_backward({h_out, rstd, gate.has_value() ? branch : Tensor(),
                                gate.value_or(Tensor()), scale, shift.value_or(Tensor())});
    context->saved_data["offset"] = offset;
    context->set_materialize_grads(false);
    context->mark_non_differentiable({rstd});
    return {h_out, y, rstd};
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("add_rms_norm");
    tensor_list result(7);
    const Tensor dh_out = contiguous(gradients[0]);
    const Tensor dy = contiguous(gradients[1]);
    if (!dh_out.defined() && !dy.defined()) return result;
    const auto saved = context->get_saved_variables();
    const Tensor& branch = saved[2];
    const Tensor& gate = saved[3];
    if (!dy.defined()) {
      addition_gradients(dh_out, branch, gate, result);
      return result;
    }
    auto [dh, dbranch, dgate, dscale, dshift] = call_norm_backward(
        optional(dh_out), dy, saved[0], saved[1], optional(branch), optional(gate), saved[4],
        optional(saved[5]), context->saved_data["offset"].toDouble());
    result[0] = dh;
    result[1] = gate.defined() ? dbranch : dh;
    if (gate.defined()) result[2] = dgate;
    result[3] = dscale;
    if (saved[5].defined()) result[4] = dshift;
    return result;
  }
};

class AddGateFunction : public torch::autograd::Function<AddGateFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& h, const Tensor& branch,
                        const OptionalTensor& gate) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Tensor out = call_gate(h, branch, gate);
    context->save_for_backward({gate.has_value() ? branch : Tensor(), gate.value_or(Tensor())});
    context->set_materialize_grads(false);
    return out;
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("add_gate");
    tensor_list result(3);
    if (!gradients[0].defined()) return result;
    const auto saved = context->get_saved_variables();
    addition_gradients(gradients[0].contiguous(), saved[0], saved[1], result);
    return result;
  }
};

NormResult add_rms_norm_autograd(const Tensor& h, const Tensor& branch, const OptionalTensor& gate,
                                 const Tensor& scale, const OptionalTensor& shift, double eps,
                                 double offset) {
  auto result = AddRmsNormFunction::apply(h, branch, gate, scale, shift, eps, offset);
  return {result[0], result[1], result[2]};
}

Tensor add_gate_autograd(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  return AddGateFunction::apply(h, branch, gate);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("add_rms_norm", add_rms_norm_autograd);
  m.impl("add_gate", add_gate_autograd);
}

}  // namespace

std::pair<Tensor, Tensor> add_rms_norm(const Tensor& h, const Tensor& branch,
                                       const OptionalTensor& gate, const Tensor& scale,
                                       const OptionalTensor& shift, double eps, double offset) {
  auto [h_out, y, rstd] =
      call_norm(h.contiguous(), branch.contiguous(), gate, scale, shift, eps, offset);
  return {h_out, y};
}

Tensor add_gate(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  return call_gate(h.contiguous(), branch.contiguous(), gate);
}

}  // namespace longship::ops
