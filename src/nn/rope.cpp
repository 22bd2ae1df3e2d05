#include "nn/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include "nn/functions.h"
#include "nn/tensor_math.h"

namespace longship::nn {

RopeTable rope_table(const at::Tensor& positions, int64_t head_dim, double theta,
                     at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const at::TensorOptions options = positions.options().dtype(wide);
  const at::Tensor exponent = at::arange(0, head_dim, 2, options) / static_cast<double>(head_dim);
  const at::Tensor inverse = at::pow(at::Scalar(theta), -exponent);
  const at::Tensor angle = (positions.to(wide).unsqueeze(-1) * inverse).unsqueeze(-2);
  return {at::cos(angle).to(dtype), at::sin(angle).to(dtype)};
}

at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table) {
  const at::ScalarType dtype = x.scalar_type();
  return rotate_half(x.to(table.cos.scalar_type()), table.cos, table.sin).to(dtype);
}

}  // namespace longship::nn
