#include "nn/weight_gradient.h"

#include <ATen/ops/mm.h>

#include "ops/gradient_place.h"

namespace longship::nn {

at::Tensor rows_of(const at::Tensor& x) {
  return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)});
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor place = ops::take_gradient_place(weight);
  if (!place.defined()) return at::mm(dy.t(), x);
  at::mm_out(place, dy.t(), x);
  return place;
}

}  // namespace longship::nn
