// Autograd of head_norm_rope. Saved for backward: qkv, the weights, cos and sin.
#include "ops/head_norm_rope.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>

#include "ops/handle.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using OptionalTensor = std::optional<at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

TensorTriple call_forward(const at::Tensor& qkv, const at::Tensor& q_weight,
                          const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin,
                          int64_t num_heads, int64_t num_kv_heads, double eps) {
  static const auto op =
      typed_op<TensorTriple(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, int64_t, int64_t, double)>(
          "longship::head_norm_rope");
  return op.call(qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads, eps);
}

TensorTriple call_backward(const OptionalTensor& dq, const OptionalTensor& dk,
                           const OptionalTensor& dv, const at::Tensor& qkv,
                           const at::Tensor& q_weight, const at::Tensor& k_weight,
                           const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads,
                           int64_t num_kv_heads, double eps) {
  static const auto op =
      typed_op<TensorTriple(const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                            const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, int64_t, int64_t, double)>(
          "longship::head_norm_rope_backward");
  return op.call(dq, dk, dv, qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads, eps);
}

OptionalTensor if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// v is made below autograd, so that it is a result of this node and no view of an input: its
// gradient arrives here with the others.
class HeadNormRopeFunction : public torch::autograd::Function<HeadNormRopeFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const at::Tensor& qkv,
                             const at::Tensor& q_weight, const at::Tensor& k_weight,
                             const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads,
                             int64_t num_kv_heads, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [q, k, v] = call_forward(qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads, eps);
    context->save_for_backward({qkv, q_weight, k_weight, cos, sin});
    context->saved_data["num_heads"] = num_heads;
    context->saved_data["num_kv_heads"] = num_kv_heads;
    context->saved_data["eps"] = eps;
    // A result that the loss does not use has no gradient tensor; the kernel takes zeros for it.
    context->set_materialize_grads(false);
    return {q, k, v};
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("head_norm_rope");
    tensor_list result(8);
    if (!gradients[0].defined() && !gradients[1].defined() && !gradients[2].defined()) {
      return result;
    }
    const tensor_list saved = context->get_saved_variables();
    std::tie(result[0], result[1], result[2]) = call_backward(
        if_defined(gradients[0]), if_defined(gradients[1]), if_defined(gradients[2]), saved[0],
        saved[1], saved[2], saved[3], saved[4], context->saved_data["num_heads"].toInt(),
        context->saved_data["num_kv_heads"].toInt(), context->saved_data["eps"].toDouble());
    return result;
  }
};

TensorTriple head_norm_rope_autograd(const at::Tensor& qkv, const at::Tensor& q_weight,
                                     const at::Tensor& k_weight, const at::Tensor& cos,
                                     const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads,
                                     double eps) {
  auto result =
      HeadNormRopeFunction::apply(qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads, eps);
  return {result[0], result[1], result[2]};
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("head_norm_rope", head_norm_rope_autograd);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope(
    const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
    const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads,
    double eps) {
  return call_forward(qkv.contiguous(), q_weight.contiguous(), k_weight.contiguous(),
                      cos.contiguous(), sin.contiguous(), num_heads, num_kv_heads, eps);
}

}  // namespace longship::ops
