#include "nn/unit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "nn/recompute.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Report = std::function<void()>;

struct ReportHolder : torch::CustomClassHolder {
  explicit ReportHolder(Report f) : report(std::move(f)) {}
  Report report;
};

// The identity. Its backward pass runs once, when the gradients of all its tensors are complete:
// between the inside of a unit and its outside.
class Boundary : public torch::autograd::Function<Boundary> {
 public:
  static variable_list forward(AutogradContext* ctx, const Report& report,
                               const at::TensorList& tensors) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["report"] = at::IValue::make_capsule(c10::make_intrusive<ReportHolder>(report));
    return tensors.vec();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto capsule = ctx->saved_data["report"].toCapsule();
    static_cast<const ReportHolder*>(capsule.get())->report();
    variable_list out{Variable()};
    out.insert(out.end(), grads.begin(), grads.end());
    return out;
  }
};

// Leads the tensors that need a gradient through one boundary; false when none does.
bool watch(std::vector<at::Tensor>& tensors, const Report& report) {
  std::vector<at::Tensor> watched;
  for (const at::Tensor& t : tensors) {
    if (t.defined() && t.requires_grad()) watched.push_back(t);
  }
  if (watched.empty()) return false;
  const variable_list through = Boundary::apply(report, at::TensorList(watched));
  size_t next = 0;
  for (at::Tensor& t : tensors) {
    if (t.defined() && t.requires_grad()) t = through[next++];
  }
  return true;
}

}  // namespace

std::vector<at::Tensor> run_unit(UnitHooks* hooks, const std::string& unit, bool recomputed,
                                 UnitFunction function, const std::vector<at::Tensor>& inputs) {
  if (hooks == nullptr) return recompute(recomputed, std::move(function), inputs);
  hooks->before_forward(unit);
  std::vector<at::Tensor> in = inputs;
  const bool graph = at::GradMode::is_enabled();
  const bool inputs_need_grad = graph && watch(in, [=] { hooks->after_backward(unit); });
  std::vector<at::Tensor> out = recompute(recomputed, std::move(function), in);
  const bool needs_backward = graph && watch(out, [=] { hooks->before_backward(unit); });
  hooks->after_forward(unit, needs_backward, inputs_need_grad);
  return out;
}

}  // namespace longship::nn
