// Autograd of rope_qkv, zero_tail_ and permute_rows. Saved for backward: the tables, positions and
// rows_valid; rows_valid; inverse.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>

#include "ops/handle.h"
#include "ops/rope_qkv.h"
#include "ops/rows.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using OptionalTensor = std::optional<at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

TensorTriple call_rope(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
                       const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads,
                       int64_t head_dim, const OptionalTensor& rows_valid) {
  static const auto op =
      typed_op<TensorTriple(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, int64_t, int64_t, int64_t, const OptionalTensor&)>(
          "longship::rope_qkv");
  return op.call(qkv, cos, sin, positions, num_heads, num_kv_heads, head_dim, rows_valid);
}

at::Tensor call_rope_backward(const OptionalTensor& dq, const OptionalTensor& dk,
                              const OptionalTensor& dv, const at::Tensor& cos,
                              const at::Tensor& sin, const at::Tensor& positions, int64_t num_heads,
                              int64_t num_kv_heads, int64_t head_dim,
                              const OptionalTensor& rows_valid) {
  static const auto op =
      typed_op<at::Tensor(const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                          const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                          int64_t, const OptionalTensor&)>("longship::rope_qkv_backward");
  return op.call(dq, dk, dv, cos, sin, positions, num_heads, num_kv_heads, head_dim, rows_valid);
}

void call_zero_tail(const at::Tensor& x, const at::Tensor& rows_valid) {
  static const auto op =
      typed_op<void(const at::Tensor&, const at::Tensor&)>("longship::zero_tail_");
  op.call(x, rows_valid);
}

at::Tensor call_permute(const at::Tensor& x, const at::Tensor& index, const at::Tensor& inverse) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "longship::permute_rows");
  return op.call(x, index, inverse);
}

at::Tensor call_permute_backward(const at::Tensor& dy, const at::Tensor& inverse) {
  static const auto op =
      typed_op<at::Tensor(const at::Tensor&, const at::Tensor&)>("longship::permute_rows_backward");
  return op.call(dy, inverse);
}

OptionalTensor if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

class RopeQkvFunction : public torch::autograd::Function<RopeQkvFunction> {
 public:
  static tensor_list forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& cos,
                             const at::Tensor& sin, const at::Tensor& positions, int64_t num_heads,
                             int64_t num_kv_heads, int64_t head_dim,
                             const OptionalTensor& rows_valid) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [q, k, v] =
        call_rope(qkv, cos, sin, positions, num_heads, num_kv_heads, head_dim, rows_valid);
    context->save_for_backward({cos, sin, positions, rows_valid.value_or(at::Tensor())});
    context->saved_data["num_heads"] = num_heads;
    context->saved_data["num_kv_heads"] = num_kv_heads;
    context->saved_data["head_dim"] = head_dim;
    // A result that the loss does not use has no gradient tensor; the kernel writes zeros for it.
    context->set_materialize_grads(false);
    return {q, k, v};
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("rope_qkv");
    tensor_list result(8);
    if (!gradients[0].defined() && !gradients[1].defined() && !gradients[2].defined()) {
      return result;
    }
    const tensor_list saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data[name].toInt(); };
    result[0] = call_rope_backward(if_defined(gradients[0]), if_defined(gradients[1]),
                                   if_defined(gradients[2]), saved[0], saved[1], saved[2],
                                   number("num_heads"), number("num_kv_heads"), number("head_dim"),
                                   if_defined(saved[3]));
    return result;
  }
};

class ZeroTailFunction : public torch::autograd::Function<ZeroTailFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& rows_valid) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    call_zero_tail(x, rows_valid);
    context->mark_dirty({x});
    context->save_for_backward({rows_valid});
    return x;
  }

  // By reference: the list given here holds the engine's only reference to a gradient that nobody
  // else needs.
  static tensor_list backward(AutogradContext* context, tensor_list& gradients) {
    check_first_derivative("zero_tail_");
    at::Tensor gradient = std::move(gradients[0]);
    const bool owned = gradient.use_count() == 1 && gradient.storage().use_count() == 1 &&
                       gradient.is_contiguous();
    if (!owned) gradient = gradient.clone(at::MemoryFormat::Contiguous);
    call_zero_tail(gradient, context->get_saved_variables()[0]);
    return {gradient, at::Tensor()};
  }
};

class PermuteRowsFunction : public torch::autograd::Function<PermuteRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& index,
                            const at::Tensor& inverse) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({inverse});
    return call_permute(x, index, inverse);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("permute_rows");
    return {call_permute_backward(gradients[0].contiguous(), context->get_saved_variables()[0]),
            at::Tensor(), at::Tensor()};
  }
};

TensorTriple rope_qkv_autograd(const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
                               const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads,
                               int64_t head_dim, const OptionalTensor& rows_valid) {
  auto result = RopeQkvFunction::apply(qkv, cos, sin, positions, num_heads, num_kv_heads, head_dim,
                                       rows_valid);
  return {result[0], result[1], result[2]};
}

void zero_tail_autograd(const at::Tensor& x, const at::Tensor& rows_valid) {
  // Before the values are gone: the engine would notice only afterwards.
  check_not_leaf("zero_tail_", {"x", x});
  ZeroTailFunction::apply(x, rows_valid);
}

at::Tensor permute_rows_autograd(const at::Tensor& x, const at::Tensor& index,
                                 const at::Tensor& inverse) {
  return PermuteRowsFunction::apply(x, index, inverse);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("rope_qkv", rope_qkv_autograd);
  m.impl("zero_tail_", zero_tail_autograd);
  m.impl("permute_rows", permute_rows_autograd);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> rope_qkv(
    const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
    const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
    const std::optional<at::Tensor>& rows_valid) {
  return call_rope(qkv.contiguous(), cos, sin, positions, num_heads, num_kv_heads, head_dim,
                   rows_valid);
}

at::Tensor zero_tail_(const at::Tensor& x, const at::Tensor& rows_valid) {
  call_zero_tail(x, rows_valid);
  return x;
}

at::Tensor zero_tail(const at::Tensor& x, const at::Tensor& rows_valid) {
  return zero_tail_(x, rows_valid);
}

at::Tensor permute_rows(const at::Tensor& x, const at::Tensor& index, const at::Tensor& inverse) {
  return call_permute(x.contiguous(), index.contiguous(), inverse.contiguous());
}

}  // namespace longship::ops
