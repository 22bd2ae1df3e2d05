#include "nn/halves.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool side_by_side(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl() &&
         a.sizes() == b.sizes() && a.strides() == b.strides() && a.stride(1) == 1 &&
         a.stride(0) == 2 * a.size(1) && b.storage_offset() == a.storage_offset() + a.size(1);
}

class Halves : public torch::autograd::Function<Halves> {
 public:
  static variable_list forward(AutogradContext*, const Variable& x) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // outputs, not views
    return x.split(x.size(1) / 2, 1);
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    const at::Tensor &a = grads[0], &b = grads[1];
    if (!side_by_side(a, b)) return {at::cat({a, b}, 1)};
    return {a.as_strided({a.size(0), 2 * a.size(1)}, {a.stride(0), 1}, a.storage_offset())};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> halves(const at::Tensor& x) {
  LS_CHECK(x.dim() == 2 && x.size(1) % 2 == 0, ShapeError,
           "halves: a matrix with an even number of columns is needed, got {} dimensions, the last "
           "of {}",
           x.dim(), x.dim() > 0 ? x.size(-1) : 0);
  const variable_list out = Halves::apply(x);
  return {out[0], out[1]};
}

}  // namespace longship::nn
