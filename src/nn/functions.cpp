#include "nn/functions.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace longship::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double sign) {
  const int64_t half = x.size(-1) / 2;
  at::Tensor out = at::empty(x.sizes(), x.options());
  const at::Tensor x1 = x.narrow(-1, 0, half), x2 = x.narrow(-1, half, half);
  at::Tensor y1 = out.narrow(-1, 0, half), y2 = out.narrow(-1, half, half);
  at::mul_out(y1, x1, cos);
  y1.addcmul_(x2, sin, -sign);
  at::mul_out(y2, x2, cos);
  y2.addcmul_(x1, sin, sign);
  return out;
}

class RotateHalf : public torch::autograd::Function<RotateHalf> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& cos,
                          const Variable& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, 1.0);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {rotate(grads[0], saved[0], saved[1], -1.0), Variable(), Variable()};
  }
};

class PadRows : public torch::autograd::Function<PadRows> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& pad_index,
                          const Variable& unpad_index) {
    ctx->save_for_backward({unpad_index});
    return select_rows(x, pad_index);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    return {select_rows(grads[0], saved[0]), Variable(), Variable()};
  }
};

class UnpadRows : public torch::autograd::Function<UnpadRows> {
 public:
  static Variable forward(AutogradContext* ctx, const Variable& y, const Variable& pad_index,
                          const Variable& unpad_index, const Variable& unused) {
    ctx->save_for_backward({pad_index, unused});
    return select_rows(y, unpad_index);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor out = select_rows(grads[0], saved[0]);
    if (saved[1].numel() > 0) out.index_fill_(0, saved[1], 0);
    return {out, Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor select_rows(const at::Tensor& x, const at::Tensor& index) {
  if (!x.is_meta()) return at::index_select(x, 0, index);
  std::vector<int64_t> shape = x.sizes().vec();  // LibTorch has no meta kernel for index_select
  shape[0] = index.size(0);
  return at::empty(shape, x.options());
}

at::Tensor rotate_half(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return RotateHalf::apply(x, cos, sin);
}

at::Tensor pad_rows(const at::Tensor& x, const at::Tensor& pad_index,
                    const at::Tensor& unpad_index) {
  return PadRows::apply(x, pad_index, unpad_index);
}

at::Tensor unpad_rows(const at::Tensor& y, const at::Tensor& pad_index,
                      const at::Tensor& unpad_index, const at::Tensor& unused) {
  return UnpadRows::apply(y, pad_index, unpad_index, unused);
}

}  // namespace longship::nn
