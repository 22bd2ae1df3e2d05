// Shapes of layer_norm and add_layer_norm without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/norm_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

Tensor row_statistic(const Tensor& x, const GroupedRows& rows) {
  return at::empty({rows.num_rows}, x.options().dtype(accumulate_type(x)));
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_meta(const Tensor& x, const Tensor& weight,
                                                   const Tensor& bias, double /*eps*/) {
  const GroupedRows rows = check_rows("layer_norm", x, {{"weight", weight}, {"bias", bias}});
  return {at::empty_like(x), row_statistic(x, rows), row_statistic(x, rows)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_meta(const Tensor& dy, const Tensor& x,
                                                            const Tensor& /*mean*/,
                                                            const Tensor& /*rstd*/,
                                                            const Tensor& weight,
                                                            const Tensor& bias) {
  check_rows("layer_norm_backward", x, {{"weight", weight}, {"bias", bias}});
  check_like("layer_norm_backward", "dy", dy, x);
  return {at::empty_like(x), at::empty(weight.sizes(), weight.options()),
          at::empty(bias.sizes(), bias.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_meta(const Tensor& h,
                                                               const Tensor& branch,
                                                               const Tensor& weight,
                                                               const Tensor& bias, double /*eps*/) {
  const GroupedRows rows = check_rows("add_layer_norm", h, {{"weight", weight}, {"bias", bias}});
  check_like("add_layer_norm", "branch", branch, h);
  return {at::empty_like(h), at::empty_like(h), row_statistic(h, rows), row_statistic(h, rows)};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward_meta(
    const OptionalTensor& /*dh_out*/, const Tensor& dy, const Tensor& h_out, const Tensor& /*mean*/,
    const Tensor& /*rstd*/, const Tensor& weight, const Tensor& bias) {
  check_rows("add_layer_norm_backward", h_out, {{"weight", weight}, {"bias", bias}});
  check_like("add_layer_norm_backward", "dy", dy, h_out);
  return {at::empty_like(h_out), at::empty(weight.sizes(), weight.options()),
          at::empty(bias.sizes(), bias.options())};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("layer_norm", layer_norm_meta);
  m.impl("layer_norm_backward", layer_norm_backward_meta);
  m.impl("add_layer_norm", add_layer_norm_meta);
  m.impl("add_layer_norm_backward", add_layer_norm_backward_meta);
}

}  // namespace
}  // namespace longship::ops
