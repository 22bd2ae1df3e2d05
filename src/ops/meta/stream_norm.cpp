// Shapes of stream_norm, add_stream_norm and add_dropped without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/stream_norm_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;

Tensor statistic(const Tensor& h, const StreamRows& shape) {
  return at::empty({shape.rows.num_rows}, h.options().dtype(accumulate_type(h)));
}

Tensor rows_of(const Tensor& h, at::ScalarType dtype) {
  return at::empty(h.sizes(), h.options().dtype(dtype));
}

Tensor gradient_of(const OptionalTensor& param, const Tensor& otherwise) {
  return param.has_value() ? at::empty(param->sizes(), param->options())
                           : at::empty({0}, otherwise.options());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> stream_norm_meta(const Tensor& h,
                                                            const OptionalTensor& scale,
                                                            const OptionalTensor& shift,
                                                            bool /*plus_one*/, double /*eps*/,
                                                            at::ScalarType dtype) {
  const StreamRows shape = check_stream_norm("stream_norm", h, scale, shift, dtype);
  return {h, rows_of(h, dtype), statistic(h, shape), statistic(h, shape)};
}

std::tuple<Tensor, Tensor, Tensor> stream_norm_backward_meta(
    const OptionalTensor& /*dh_out*/, const Tensor& dy, const Tensor& h, const Tensor& /*mean*/,
    const Tensor& /*rstd*/, const OptionalTensor& scale, const OptionalTensor& shift,
    bool /*plus_one*/) {
  check_stream_norm("stream_norm_backward", h, scale, shift, dy.scalar_type());
  check_rows_like("stream_norm_backward", "dy", dy, h, dy.scalar_type());
  return {at::empty_like(h), gradient_of(scale, h), gradient_of(shift, h)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_stream_norm_meta(
    const Tensor& h, const Tensor& values, const OptionalTensor& bias, const OptionalTensor& keys,
    at::IntArrayRef sites, double p, const OptionalTensor& scale, const OptionalTensor& shift,
    bool /*plus_one*/, double /*eps*/) {
  const StreamRows shape = check_add_stream_norm(
      "add_stream_norm", h, {values, bias, keys, sites, p}, scale, shift, values.scalar_type());
  return {at::empty_like(h), at::empty_like(values), statistic(h, shape), statistic(h, shape)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_stream_norm_backward_meta(
    const OptionalTensor& /*dh_out*/, const Tensor& dy, const Tensor& h_out, const Tensor& /*mean*/,
    const Tensor& /*rstd*/, const OptionalTensor& bias, const OptionalTensor& keys,
    at::IntArrayRef sites, double p, const OptionalTensor& scale, const OptionalTensor& shift,
    bool /*plus_one*/) {
  constexpr const char* kOp = "add_stream_norm_backward";
  check_add_stream_norm(kOp, h_out, {std::nullopt, bias, keys, sites, p}, scale, shift,
                        dy.scalar_type());
  check_rows_like(kOp, "dy", dy, h_out, dy.scalar_type());
  return {at::empty_like(h_out), at::empty_like(dy), gradient_of(bias, dy),
          gradient_of(scale, h_out), gradient_of(shift, h_out)};
}

Tensor add_dropped_meta(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                        const OptionalTensor& keys, at::IntArrayRef sites, double p) {
  check_add_stream_norm("add_dropped", h, {values, bias, keys, sites, p}, {}, {},
                        values.scalar_type());
  return at::empty_like(h);
}

std::tuple<Tensor, Tensor> add_dropped_backward_meta(const Tensor& dh_out,
                                                     const OptionalTensor& bias,
                                                     const OptionalTensor& keys,
                                                     at::IntArrayRef sites, double p,
                                                     at::ScalarType dtype) {
  check_add_stream_norm("add_dropped_backward", dh_out, {std::nullopt, bias, keys, sites, p}, {},
                        {}, dtype);
  const Tensor dbranch = rows_of(dh_out, dtype);
  return {dbranch, gradient_of(bias, dbranch)};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("stream_norm", stream_norm_meta);
  m.impl("stream_norm_backward", stream_norm_backward_meta);
  m.impl("add_stream_norm", add_stream_norm_meta);
  m.impl("add_stream_norm_backward", add_stream_norm_backward_meta);
  m.impl("add_dropped", add_dropped_meta);
  m.impl("add_dropped_backward", add_dropped_backward_meta);
}

}  // namespace
}  // namespace longship::ops
