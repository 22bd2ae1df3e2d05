// Shapes of flow_mix and flow_loss without memory.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/flow_check.h"

namespace longship::ops {
namespace {

at::Tensor flow_mix_meta(const at::Tensor& actions, const at::Tensor& noise,
                         const at::Tensor& time) {
  check_flow_mix(actions, noise, time);
  return at::empty_like(actions);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flow_loss_meta(
    const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
    const std::optional<at::Tensor>& is_pad) {
  check_flow_loss("flow_loss", v, actions, noise, dims, is_pad);
  const auto options = v.options().dtype(v.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return {at::empty({}, options), at::empty({}, options), at::empty({}, options)};
}

at::Tensor flow_loss_backward_meta(const at::Tensor& /*dloss*/, const at::Tensor& v,
                                   const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
                                   const std::optional<at::Tensor>& is_pad,
                                   const at::Tensor& /*count*/) {
  check_flow_loss("flow_loss_backward", v, actions, noise, dims, is_pad);
  return at::empty_like(v);
}

TORCH_LIBRARY_IMPL(longship, Meta, m) {
  m.impl("flow_mix", flow_mix_meta);
  m.impl("flow_loss", flow_loss_meta);
  m.impl("flow_loss_backward", flow_loss_backward_meta);
}

}  // namespace
}  // namespace longship::ops
