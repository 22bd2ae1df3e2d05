// CUDA launches of flow_mix and flow_loss: check, allocate, call the kernel on the current stream.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/flow/flow.h"
#include "ops/cuda/launch.h"
#include "ops/flow_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

at::Tensor flow_mix_cuda(const at::Tensor& actions, const at::Tensor& noise,
                         const at::Tensor& time) {
  const FlowShape shape = check_flow_mix(actions, noise, time);
  check_dtype("flow_mix", {"time", time}, at::kFloat);
  const c10::cuda::CUDAGuard guard(actions.device());
  at::Tensor x_t = at::empty_like(actions);
  kernels::FlowMixArgs args;
  args.actions = actions.const_data_ptr();
  args.noise = noise.const_data_ptr();
  args.time = time.const_data_ptr<float>();
  args.x_t = x_t.mutable_data_ptr();
  args.num_samples = shape.num_samples;
  args.per_sample = actions.size(1) * shape.width;
  args.element = element_of("flow_mix", actions);
  check_launch("flow_mix", kernels::flow_mix(args, c10::cuda::getCurrentCUDAStream()));
  return x_t;
}

const bool* padding(const std::optional<at::Tensor>& is_pad) {
  return is_pad.has_value() ? is_pad->const_data_ptr<bool>() : nullptr;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flow_loss_cuda(
    const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
    const std::optional<at::Tensor>& is_pad) {
  const FlowShape shape = check_flow_loss("flow_loss", v, actions, noise, dims, is_pad);
  const c10::cuda::CUDAGuard guard(v.device());
  const auto options = v.options().dtype(at::kFloat);
  at::Tensor loss = at::empty({}, options);
  at::Tensor loss_all = at::empty({}, options);
  at::Tensor count = at::empty({}, options);
  at::Tensor partial =
      at::empty({3, kernels::flow_loss_num_partials(shape.num_steps, shape.width)}, options);
  kernels::FlowLossArgs args;
  args.v = v.const_data_ptr();
  args.actions = actions.const_data_ptr();
  args.noise = noise.const_data_ptr();
  args.is_pad = padding(is_pad);
  args.loss = loss.mutable_data_ptr<float>();
  args.loss_all = loss_all.mutable_data_ptr<float>();
  args.count = count.mutable_data_ptr<float>();
  args.partial = partial.mutable_data_ptr<float>();
  args.num_steps = shape.num_steps;
  args.width = shape.width;
  args.dims = dims;
  args.v_element = element_of("flow_loss", v);
  args.element = element_of("flow_loss", actions);
  check_launch("flow_loss", kernels::flow_loss(args, c10::cuda::getCurrentCUDAStream()));
  return {loss, loss_all, count};
}

at::Tensor flow_loss_backward_cuda(const at::Tensor& dloss, const at::Tensor& v,
                                   const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
                                   const std::optional<at::Tensor>& is_pad,
                                   const at::Tensor& count) {
  constexpr const char* kOp = "flow_loss_backward";
  const FlowShape shape = check_flow_loss(kOp, v, actions, noise, dims, is_pad);
  check_dtype(kOp, {"dloss", dloss}, at::kFloat);
  check_dtype(kOp, {"count", count}, at::kFloat);
  check_devices(kOp, {{"v", v}, {"dloss", dloss}, {"count", count}});
  const c10::cuda::CUDAGuard guard(v.device());
  at::Tensor dv = at::empty_like(v);
  kernels::FlowLossBackwardArgs args;
  args.dloss = dloss.const_data_ptr<float>();
  args.v = v.const_data_ptr();
  args.actions = actions.const_data_ptr();
  args.noise = noise.const_data_ptr();
  args.is_pad = padding(is_pad);
  args.count = count.const_data_ptr<float>();
  args.dv = dv.mutable_data_ptr();
  args.num_steps = shape.num_steps;
  args.width = shape.width;
  args.dims = dims;
  args.v_element = element_of(kOp, v);
  args.element = element_of(kOp, actions);
  check_launch(kOp, kernels::flow_loss_backward(args, c10::cuda::getCurrentCUDAStream()));
  return dv;
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("flow_mix", flow_mix_cuda);
  m.impl("flow_loss", flow_loss_cuda);
  m.impl("flow_loss_backward", flow_loss_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
