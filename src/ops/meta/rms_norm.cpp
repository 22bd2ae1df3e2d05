// Shapes of rms_norm, add_rms_norm and add_gate without memory.
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

/// A contiguous tensor like `t`, or [0] with the options of `otherwise`.
Tensor gradient_of(const OptionalTensor& t, const Tensor& otherwise) {
  return t.has_value() ? at::empty(t->sizes(), t->options()) : at::empty({0}, otherwise.options());
}

std::tuple<Tensor, Tensor> rms_norm_meta(const Tensor& x, const Tensor& scale,
                                         const OptionalTensor& shift, double /*eps*/,
                                         double /*offset*/) {
  const GroupedRows rows = check_grouped_rows("rms_norm", x, {{"scale", scale}, {"shift", shift}});
  return {at::empty_like(x), row_statistic(x, rows)};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_meta(const Tensor& dy, const Tensor& x,
                                                          const Tensor& scale,
                                                          const Tensor& /*rstd*/,
                                                          const OptionalTensor& shift,
                                                          double /*offset*/) {
  check_grouped_rows("rms_norm_backward", x, {{"scale", scale}, {"shift", shift}});
  check_like("rms_norm_backward", "dy", dy, x);
  return {at::empty_like(x), gradient_of(scale, scale), gradient_of(shift, scale)};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_meta(const Tensor& h, const Tensor& branch,
                                                     const OptionalTensor& gate,
                                                     const Tensor& scale,
                                                     const OptionalTensor& shift, double /*eps*/,
                                                     double /*offset*/) {
  const GroupedRows rows =
      check_grouped_rows("add_rms_norm", h, {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like("add_rms_norm", "branch", branch, h);
  return {at::empty_like(h), at::empty_like(h), row_statistic(h, rows)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_rms_norm_backward_meta(
    const OptionalTensor& /*dh_out*/, const Tensor& dy, const Tensor& h_out, const Tensor& /*rstd*/,
    const OptionalTensor& branch, const OptionalTensor& gate, const Tensor& scale,
    const OptionalTensor& shift, double /*offset*/) {
  check_grouped_rows("add_rms_norm_backward", h_out,
                     {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like("add_rms_norm_backward", "dy", dy, h_out);
  return {at::empty_like(h_out), gradient_of(gate.has_value() ? branch : std::nullopt, h_out),
          gradient_of(gate, scale), gradient_of(scale, scale), gradient_of(shift, scale)};
}

Tensor add_gate_meta(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  check_grouped_rows("add_gate", h, {{"gate", gate}});
  check_like("add_gate", "branch", branch, h);
  return at::empty_like(h);
}

std::tuple<Tensor, Tensor> add_gate_backward_meta(const Tensor& dout, const Tensor& branch,
                                                  const Tensor& gate) {
  check_grouped_rows("add_gate_backward", dout, {{"gate", gate}});
  check_like("add_gate_backward", "branch", branch, dout);
  return {at::empty_like(branch), gradient_of(gate, gate)};
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("rms_norm", rms_norm_meta);
  m.impl("rms_norm_backward", rms_norm_backward_meta);
  m.impl("add_rms_norm", add_rms_norm_meta);
  m.impl("add_rms_norm_backward", add_rms_norm_backward_meta);
  m.impl("add_gate", add_gate_meta);
  m.impl("add_gate_backward", add_gate_backward_meta);
}

}  // namespace
}  // namespace longship::ops
