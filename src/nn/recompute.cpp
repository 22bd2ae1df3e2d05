#include "nn/recompute.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Unit = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct UnitHolder : torch::CustomClassHolder {
  explicit UnitHolder(Unit f) : unit(std::move(f)) {}
  Unit unit;
};

// Saved: the inputs. `trigger` is a tensor that requires grad, so that outputs are differentiable
// even when no input is (the first unit reads pictures).
class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static variable_list forward(AutogradContext* ctx, const Variable& trigger, const Unit& unit,
                               const at::TensorList& inputs) {
    static_cast<void>(trigger);
    ctx->set_materialize_grads(false);
    const std::vector<at::Tensor> given = inputs.vec();
    std::vector<int64_t> needs;
    for (const at::Tensor& x : given) needs.push_back(x.requires_grad() ? 1 : 0);
    ctx->saved_data["needs"] = needs;
    ctx->saved_data["unit"] = at::IValue::make_capsule(c10::make_intrusive<UnitHolder>(unit));
    ctx->save_for_backward(given);
    return unit(given);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::vector<int64_t> needs = ctx->saved_data["needs"].toIntVector();
    const auto capsule = ctx->saved_data["unit"].toCapsule();
    const auto& unit = static_cast<const UnitHolder*>(capsule.get())->unit;
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < saved.size(); ++i) {
      at::Tensor x = saved[i].defined() ? saved[i].detach() : at::Tensor();
      if (needs[i] != 0) x.set_requires_grad(true);
      inputs.push_back(std::move(x));
    }
    variable_list roots, root_grads;
    {
      const at::AutoGradMode grad_mode(true);
      const std::vector<at::Tensor> outputs = unit(inputs);
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!grads[i].defined() || !outputs[i].requires_grad()) continue;
        roots.push_back(outputs[i]);
        root_grads.push_back(grads[i]);
      }
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list out{Variable(), Variable()};
    for (size_t i = 0; i < inputs.size(); ++i) {
      out.push_back(needs[i] != 0 ? inputs[i].grad() : at::Tensor());
    }
    return out;
  }
};

}  // namespace

std::vector<at::Tensor> recompute(bool enabled, Unit unit, const std::vector<at::Tensor>& inputs) {
  if (!enabled || !at::GradMode::is_enabled()) return unit(inputs);
  at::Tensor trigger = at::empty({0}, inputs.front().options().dtype(at::kFloat));
  trigger.set_requires_grad(true);
  return Recompute::apply(trigger, unit, at::TensorList(inputs));
}

}  // namespace longship::nn
