// Gated MLP with FP8 operands. Saved for backward: the transposed copies of x and of the
// activation with their scales, gate_up in the dtype of x, and references to the transposed weight
// copies, their scales and the states.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "ops/fp8.h"
#include "ops/fp8_internal.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

/// What the call needs gradients of.
struct Needs {
  bool input = false;
  bool gate_up = false;
  bool down = false;

  /// Whether gradients go beyond the last product.
  bool inner() const { return input || gate_up; }
  bool any() const { return inner() || down; }
};

enum Saved { kX, kXScale, kGateUp, kAct, kActScale, kUpW, kUpWScale, kDownW, kDownWScale, kStates };

class Fp8GatedMlpFunction : public torch::autograd::Function<Fp8GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& gate,
                            const at::Tensor& /*up*/, const at::Tensor& down,
                            const Fp8GatedMlpSite& site, Needs needs) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Fp8Recipe& recipe = site.recipe;
    Fp8Matrix x8 = fp8_quantize(
        fp8_rows("fp8_gated_mlp", x, site.gate_up.q.size(1)), at::kFloat8_e4m3fn,
        fp8_site_scale(site.state, site.input, recipe, needs.any()), copies(true, needs.gate_up));
    const at::Tensor gate_up =
        fp8_matmul(x8.q, site.gate_up.q, x8.inv_scale, site.gate_up.inv_scale(), std::nullopt,
                   x.scalar_type(), recipe.fast_accumulation_forward);
    x8.q.reset();  // room for the activation
    const Fp8Matrix act8 = fp8_geglu_quantize(
        gate_up, at::kFloat8_e4m3fn,
        fp8_site_scale(site.state, site.activation, recipe, needs.any()), copies(true, needs.down));
    const at::Tensor y =
        fp8_matmul(act8.q, site.down.q, act8.inv_scale, site.down.inv_scale(), std::nullopt,
                   x.scalar_type(), recipe.fast_accumulation_forward);
    const at::Tensor none;
    const bool inner = needs.inner();
    const Fp8Scale scale = fp8_site_scale(site.state, 0, recipe, true);
    context->set_materialize_grads(false);
    context->save_for_backward({x8.q_t, x8.inv_scale, inner ? gate_up : none, act8.q_t,
                                act8.inv_scale, needs.input ? site.gate_up.q_t : none,
                                site.gate_up.inv_scale(), inner ? site.down.q_t : none,
                                site.down.inv_scale(), scale.states});
    auto& data = context->saved_data;
    data["output_gradient"] = site.output_gradient;
    data["gate_up_gradient"] = site.gate_up_gradient;
    data["margin"] = recipe.margin;
    data["format"] = static_cast<int64_t>(recipe.gradient_format);
    data["fast"] = recipe.fast_accumulation_backward;
    data["sizes"] = x.sizes().vec();
    data["x_dtype"] = static_cast<int64_t>(x.scalar_type());
    data["gate_dtype"] = static_cast<int64_t>(gate.scalar_type());
    data["down_dtype"] = static_cast<int64_t>(down.scalar_type());
    data["hidden"] = gate.size(0);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = down.size(0);
    return y.view(sizes);
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("fp8_gated_mlp");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    tensor_list out(6);  // x, gate, up, down, site, needs
    if (!gradients[0].defined()) return out;
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const bool fast = data["fast"].toBool();
    const bool need_down = saved[kAct].defined() && context->needs_input_grad(3);
    const bool need_inner =
        saved[kGateUp].defined() && context->needs_input_grad({{0, 3}});  // x, gate or up
    const at::Tensor& dy = gradients[0];
    const Fp8Matrix dy8 = fp8_quantize(
        fp8_rows("fp8_gated_mlp", dy, dy.size(-1)), dtype(context, "format"),
        gradient_scale(context, "output_gradient", saved[kStates]), copies(need_inner, need_down));
    if (need_down) {
      out[3] = fp8_matmul(dy8.q_t, saved[kAct], dy8.inv_scale, saved[kActScale], std::nullopt,
                          dtype(context, "down_dtype"), fast);
    }
    if (!need_inner) return out;
    const at::Tensor dact = fp8_matmul(dy8.q, saved[kDownW], dy8.inv_scale, saved[kDownWScale],
                                       std::nullopt, dtype(context, "x_dtype"), fast);
    backward_gate_up(context, saved, dact, out);
    return out;
  }

 private:
  static Fp8Copies copies(bool rows, bool transposed) {
    return {.rows = rows, .transposed = transposed};
  }

  static at::ScalarType dtype(AutogradContext* context, const char* name) {
    return static_cast<at::ScalarType>(context->saved_data[name].toInt());
  }

  static Fp8Scale gradient_scale(AutogradContext* context, const char* index,
                                 const at::Tensor& states) {
    return {.states = states,
            .index = context->saved_data[index].toInt(),
            .record = states.defined(),
            .margin = context->saved_data["margin"].toDouble()};
  }

  /// Gradients of x, gate and up from that of the activation.
  static void backward_gate_up(AutogradContext* context, const tensor_list& saved,
                               const at::Tensor& dact, tensor_list& out) {
    auto& data = context->saved_data;
    const bool fast = data["fast"].toBool();
    const bool need_dx = saved[kUpW].defined() && context->needs_input_grad(0);
    const bool need_dw = saved[kX].defined() && context->needs_input_grad({{1, 3}});
    const Fp8Matrix dgu8 = fp8_geglu_backward_quantize(
        dact, saved[kGateUp], dtype(context, "format"),
        gradient_scale(context, "gate_up_gradient", saved[kStates]), copies(need_dx, need_dw));
    if (need_dx) {
      out[0] = fp8_matmul(dgu8.q, saved[kUpW], dgu8.inv_scale, saved[kUpWScale], std::nullopt,
                          dtype(context, "x_dtype"), fast)
                   .view(data["sizes"].toIntVector());
    }
    if (need_dw) {
      const at::Tensor dw = fp8_matmul(dgu8.q_t, saved[kX], dgu8.inv_scale, saved[kXScale],
                                       std::nullopt, dtype(context, "gate_dtype"), fast);
      const int64_t hidden = data["hidden"].toInt();
      const std::vector<at::Tensor> parts = fp8_split_rows(dw, {hidden, hidden});
      for (size_t i = 0; i < 2; ++i) {
        if (context->needs_input_grad(1 + i)) out[1 + i] = parts[i];
      }
    }
  }
};

}  // namespace

at::Tensor fp8_gated_mlp(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                         const at::Tensor& down, const Fp8GatedMlpSite& site) {
  Needs needs;
  if (at::GradMode::is_enabled()) {
    needs.input = x.requires_grad();
    needs.gate_up = gate.requires_grad() || up.requires_grad();
    needs.down = down.requires_grad();
  }
  check_fp8_weight("fp8_gated_mlp", site.gate_up, {gate, up}, needs.input);
  check_fp8_weight("fp8_gated_mlp", site.down, down, needs.inner());
  LS_CHECK(gate.sizes() == up.sizes() && down.size(1) == gate.size(0), ShapeError,
           "fp8_gated_mlp: gate [{}, {}] and up must have one shape, and down [{}, {}] as many "
           "columns as they rows",
           gate.size(0), gate.size(1), down.size(0), down.size(1));
  return Fp8GatedMlpFunction::apply(x, gate, up, down, site, needs);
}

}  // namespace longship::ops
