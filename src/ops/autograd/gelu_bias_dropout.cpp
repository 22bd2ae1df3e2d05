// Autograd of gelu_bias_dropout. Saved for backward: x, bias, keys.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>

#include "ops/gelu_bias.h"
#include "ops/handle.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor call(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& keys, int64_t site,
                double p) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t,
                          double)>("longship::gelu_bias_dropout");
  return op.call(x, bias, keys, site, p);
}

TensorPair call_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& bias,
                         const at::Tensor& keys, int64_t site, double p) {
  static const auto op = typed_op<TensorPair(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, double)>(
      "longship::gelu_bias_dropout_backward");
  return op.call(dy, x, bias, keys, site, p);
}

class GeluBiasDropoutFunction : public torch::autograd::Function<GeluBiasDropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias,
                            const at::Tensor& keys, int64_t site, double p) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x, bias, keys});
    context->saved_data["site"] = site;
    context->saved_data["p"] = p;
    return call(x, bias, keys, site, p);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("gelu_bias_dropout");
    const tensor_list saved = context->get_saved_variables();
    tensor_list result(5);
    std::tie(result[0], result[1]) =
        call_backward(gradients[0].contiguous(), saved[0], saved[1], saved[2],
                      context->saved_data["site"].toInt(), context->saved_data["p"].toDouble());
    return result;
  }
};

at::Tensor gelu_bias_dropout_autograd(const at::Tensor& x, const at::Tensor& bias,
                                      const at::Tensor& keys, int64_t site, double p) {
  return GeluBiasDropoutFunction::apply(x, bias, keys, site, p);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("gelu_bias_dropout", gelu_bias_dropout_autograd);
}

}  // namespace

at::Tensor gelu_bias_dropout(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& keys,
                             int64_t site, double p) {
  return call(x.contiguous(), bias.contiguous(), keys.contiguous(), site, p);
}

}  // namespace longship::ops
