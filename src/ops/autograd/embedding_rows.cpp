// Autograd of embedding_rows. Saved for backward: ids; grad_rows and row_flags by reference,
// without a version check, because every backward that runs before this one may add to them.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "base/error.h"
#include "ops/embedding_rows.h"
#include "ops/embedding_rows_check.h"
#include "ops/handle.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;
using OptionalTensor = std::optional<at::Tensor>;

at::Tensor call_forward(const at::Tensor& weight, const at::Tensor& ids, double scale,
                        int64_t pad_id, const OptionalTensor& grad_rows,
                        const OptionalTensor& row_flags) {
  static const auto op = typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, double, int64_t,
                                             const OptionalTensor&, const OptionalTensor&)>(
      "longship::embedding_rows");
  return op.call(weight, ids, scale, pad_id, grad_rows, row_flags);
}

void call_backward(const at::Tensor& dy, const at::Tensor& ids, double scale, int64_t pad_id,
                   const at::Tensor& grad_rows, const at::Tensor& row_flags) {
  static const auto op =
      typed_op<void(const at::Tensor&, const at::Tensor&, double, int64_t, const at::Tensor&,
                    const at::Tensor&)>("longship::embedding_rows_backward");
  op.call(dy, ids, scale, pad_id, grad_rows, row_flags);
}

class EmbeddingRowsFunction : public torch::autograd::Function<EmbeddingRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight,
                            const at::Tensor& ids, double scale, int64_t pad_id,
                            const at::Tensor& grad_rows, const at::Tensor& row_flags) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({ids});
    context->saved_data["grad_rows"] = grad_rows;
    context->saved_data["row_flags"] = row_flags;
    context->saved_data["scale"] = scale;
    context->saved_data["pad_id"] = pad_id;
    return call_forward(weight, ids, scale, pad_id, grad_rows, row_flags);
  }

  static tensor_list backward(AutogradContext* context, const tensor_list& gradients) {
    check_first_derivative("embedding_rows");
    const at::Tensor grad_rows = context->saved_data["grad_rows"].toTensor();
    const at::Tensor row_flags = context->saved_data["row_flags"].toTensor();
    call_backward(gradients[0].contiguous(), context->get_saved_variables()[0],
                  context->saved_data["scale"].toDouble(), context->saved_data["pad_id"].toInt(),
                  grad_rows, row_flags);
    // Changed in place behind the dispatcher's back.
    grad_rows.unsafeGetTensorImpl()->bump_version();
    row_flags.unsafeGetTensorImpl()->bump_version();
    return tensor_list(6);
  }
};

at::Tensor embedding_rows_autograd(const at::Tensor& weight, const at::Tensor& ids, double scale,
                                   int64_t pad_id, const OptionalTensor& grad_rows,
                                   const OptionalTensor& row_flags) {
  if (!at::GradMode::is_enabled() || !weight.requires_grad()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return call_forward(weight, ids, scale, pad_id, grad_rows, row_flags);
  }
  constexpr const char* kOp = "embedding_rows";
  LS_CHECK(grad_rows.has_value() && row_flags.has_value(), InternalError,
           "{}: weight requires grad, so grad_rows and row_flags must be given", kOp);
  // Now and not in backward, where the fault is far from its cause.
  check_sizes(kOp, {"grad_rows", *grad_rows}, weight.sizes());
  check_sizes(kOp, {"row_flags", *row_flags}, {weight.size(0)});
  check_dtype(kOp, {"row_flags", *row_flags}, at::kByte);
  check_contiguous(kOp, {{"grad_rows", *grad_rows}, {"row_flags", *row_flags}});
  return EmbeddingRowsFunction::apply(weight, ids, scale, pad_id, *grad_rows, *row_flags);
}

TORCH_LIBRARY_IMPL(longship, Autograd, m) {
  m.impl("embedding_rows", embedding_rows_autograd);
}

}  // namespace

at::Tensor embedding_rows(const at::Tensor& weight, const at::Tensor& ids, double scale,
                          int64_t pad_id, const std::optional<at::Tensor>& grad_rows,
                          const std::optional<at::Tensor>& row_flags) {
  return call_forward(weight, ids.contiguous(), scale, pad_id, grad_rows, row_flags);
}

}  // namespace longship::ops
