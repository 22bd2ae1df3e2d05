// Linear layer with FP8 operands. Saved for backward: the transposed copy of x and its scale, and
// references to the transposed weight copy, its scale and the states.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ops/fp8.h"
#include "ops/fp8_internal.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

constexpr int64_t kNoBias = -1;

/// What the call needs gradients of.
struct Needs {
  bool input = false;
  bool weights = false;
  bool bias = false;

  bool any() const { return input || weights || bias; }
};

class Fp8LinearFunction : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                            const std::optional<at::Tensor>& bias, const Fp8LinearSite& site,
                            Needs needs) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Fp8Weight& weight = site.weight;
    const Fp8Matrix x8 =
        fp8_quantize(fp8_rows("fp8_linear", x, weight.q.size(1)), at::kFloat8_e4m3fn,
                     fp8_site_scale(site.state, site.input, site.recipe, needs.any()),
                     {.rows = true, .transposed = needs.weights});
    const at::Tensor y = fp8_matmul(x8.q, weight.q, x8.inv_scale, weight.inv_scale(), bias,
                                    x.scalar_type(), site.recipe.fast_accumulation_forward);
    const Fp8Scale gradient = fp8_site_scale(site.state, site.gradient, site.recipe, true);
    context->set_materialize_grads(false);
    context->save_for_backward({x8.q_t, x8.inv_scale, needs.input ? weight.q_t : at::Tensor(),
                                weight.inv_scale(), gradient.states});
    auto& data = context->saved_data;
    data["index"] = gradient.index;
    data["margin"] = gradient.margin;
    data["format"] = static_cast<int64_t>(site.recipe.gradient_format);
    data["fast"] = site.recipe.fast_accumulation_backward;
    data["sizes"] = x.sizes().vec();
    data["x_dtype"] = static_cast<int64_t>(x.scalar_type());
    data["w_dtype"] = static_cast<int64_t>(weights[0].scalar_type());
    std::vector<int64_t> rows;
    for (const at::Tensor& part : weights) rows.push_back(part.size(0));
    data["rows"] = rows;
    data["bias_dtype"] = needs.bias ? static_cast<int64_t>(bias->scalar_type()) : kNoBias;
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.q.size(0);
    return y.view(sizes);
  }

  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    check_first_derivative("fp8_linear");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto& data = context->saved_data;
    const std::vector<int64_t> rows = data["rows"].toIntVector();
    // x, weights, bias, site, needs.
    tensor_list out(rows.size() + 4);
    if (!gradients[0].defined()) return out;
    const auto saved = context->get_saved_variables();
    const at::Tensor& x_t = saved[0];
    const at::Tensor& w_t = saved[2];
    const bool need_dx = w_t.defined() && context->needs_input_grad(0);
    const bool need_dw = x_t.defined() && need_any_weight(context, rows.size());
    Fp8Copies copies{.rows = need_dx, .transposed = need_dw};
    const int64_t bias_dtype = data["bias_dtype"].toInt();
    if (bias_dtype != kNoBias && context->needs_input_grad(1 + rows.size())) {
      copies.column_sums = static_cast<at::ScalarType>(bias_dtype);
    }
    const Fp8Scale scale{.states = saved[4],
                         .index = data["index"].toInt(),
                         .record = saved[4].defined(),
                         .margin = data["margin"].toDouble()};
    int64_t width = 0;
    for (const int64_t count : rows) width += count;
    const Fp8Matrix dy8 =
        fp8_quantize(fp8_rows("fp8_linear", gradients[0], width),
                     static_cast<at::ScalarType>(data["format"].toInt()), scale, copies);
    const bool fast = data["fast"].toBool();
    if (need_dx) {
      out[0] = fp8_matmul(dy8.q, w_t, dy8.inv_scale, saved[3], std::nullopt,
                          static_cast<at::ScalarType>(data["x_dtype"].toInt()), fast)
                   .view(data["sizes"].toIntVector());
    }
    if (need_dw) {
      const at::Tensor dw = fp8_matmul(dy8.q_t, x_t, dy8.inv_scale, saved[1], std::nullopt,
                                       static_cast<at::ScalarType>(data["w_dtype"].toInt()), fast);
      const std::vector<at::Tensor> parts = fp8_split_rows(dw, rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (context->needs_input_grad(1 + i)) out[1 + i] = parts[i];
      }
    }
    out[1 + rows.size()] = dy8.column_sums;
    return out;
  }

 private:
  static bool need_any_weight(AutogradContext* context, size_t num_weights) {
    for (size_t i = 0; i < num_weights; ++i) {
      if (context->needs_input_grad(1 + i)) return true;
    }
    return false;
  }
};

}  // namespace

at::Tensor fp8_linear(const at::Tensor& x, at::TensorList weights,
                      const std::optional<at::Tensor>& bias, const Fp8LinearSite& site) {
  const std::optional<at::Tensor> row =
      bias.has_value() && bias->defined() ? bias : std::optional<at::Tensor>();
  Needs needs;
  if (at::GradMode::is_enabled()) {
    needs.input = x.requires_grad();
    for (const at::Tensor& weight : weights) needs.weights |= weight.requires_grad();
    needs.bias = row.has_value() && row->requires_grad();
  }
  check_fp8_weight("fp8_linear", site.weight, weights, needs.input);
  return Fp8LinearFunction::apply(x, weights, row, site, needs);
}

}  // namespace longship::ops
