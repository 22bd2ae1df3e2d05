// Autograd of dropout_mask (none) and dropout. Saved for backward: keys.
#include "ops/dropout.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "ops/dropout_check.h"
#include "ops/handle.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

at::Tensor call_mask(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                     at::ScalarType dtype) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, int64_t, at::IntArrayRef, double, at::ScalarType)>(
          "longship::dropout_mask");
  return op.call(keys, site, shape, p, dtype);
}

at::Tensor call_dropout(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, double)>(
          "longship::dropout");
  return op.call(x, keys, site, p);
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& keys,
                            int64_t site, double p) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({keys});
    context->saved_data["site"] = site;
    context->saved_data["p"] = p;
    return call_dropout(x, keys, site, p);
  }

  // The operator is linear in x and its own gradient.
  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("dropout");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    tensor_list result(4);
    result[0] =
        call_dropout(gradients[0].contiguous(), context->get_saved_variables()[0],
                     context->saved_data["site"].toInt(), context->saved_data["p"].toDouble());
    return result;
  }
};

at::Tensor dropout_mask_autograd(const at::Tensor& keys, int64_t site, at::IntArrayRef shape,
                                 double p, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call_mask(keys, site, shape, p, dtype);
}

at::Tensor dropout_autograd(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  return DropoutFunction::apply(x, keys, site, p);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("dropout_mask", dropout_mask_autograd);
  m.impl("dropout", dropout_autograd);
}

}  // namespace

at::Tensor dropout_mask(const at::Tensor& keys, int64_t site, at::IntArrayRef shape, double p,
                        at::ScalarType dtype) {
  return call_mask(keys.contiguous(), site, shape, p, dtype);
}

at::Tensor dropout(const at::Tensor& x, const at::Tensor& keys, int64_t site, double p) {
  const at::Tensor dense_x = x.contiguous();
  const at::Tensor dense_keys = keys.contiguous();
  if (p != 0) return call_dropout(dense_x, dense_keys, site, p);
  check_dropout(dense_x, dense_keys, site, p);
  return x;
}

}  // namespace longship::ops
