#include "ops/flow_check.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

FlowShape check_actions(const char* op, const at::Tensor& actions, const at::Tensor& noise) {
  LS_CHECK(actions.dim() == 3, ShapeError, "{}: actions must be [B, A, D], got [{}]", op,
           fmt::join(actions.sizes(), ", "));
  check_sizes(op, {"noise", noise}, actions.sizes());
  check_dtype(op, {"noise", noise}, actions.scalar_type());
  check_contiguous(op, {{"actions", actions}, {"noise", noise}});
  check_devices(op, {{"actions", actions}, {"noise", noise}});
  return {actions.size(0), actions.size(0) * actions.size(1), actions.size(2)};
}

}  // namespace

FlowShape check_flow_mix(const at::Tensor& actions, const at::Tensor& noise,
                         const at::Tensor& time) {
  const FlowShape shape = check_actions("flow_mix", actions, noise);
  check_sizes("flow_mix", {"time", time}, {shape.num_samples});
  const bool fp64 = actions.scalar_type() == at::kDouble && time.scalar_type() == at::kDouble;
  if (!fp64) check_dtype("flow_mix", {"time", time}, at::kFloat);
  check_contiguous("flow_mix", {{"time", time}});
  check_devices("flow_mix", {{"actions", actions}, {"time", time}});
  return shape;
}

FlowShape check_flow_loss(const char* op, const at::Tensor& v, const at::Tensor& actions,
                          const at::Tensor& noise, int64_t dims,
                          const std::optional<at::Tensor>& is_pad) {
  const FlowShape shape = check_actions(op, actions, noise);
  check_sizes(op, {"v", v}, actions.sizes());
  check_contiguous(op, {{"v", v}});
  check_devices(op, {{"v", v}, {"actions", actions}});
  LS_CHECK(dims >= 1 && dims <= shape.width, ShapeError, "{}: dims = {} of {} columns", op, dims,
           shape.width);
  if (is_pad.has_value()) {
    check_sizes(op, {"is_pad", *is_pad}, {actions.size(0), actions.size(1)});
    check_dtype(op, {"is_pad", *is_pad}, at::kBool);
    check_contiguous(op, {{"is_pad", *is_pad}});
    check_devices(op, {{"v", v}, {"is_pad", *is_pad}});
  }
  return shape;
}

}  // namespace longship::ops
