// CPU implementations of flow_mix and flow_loss: the oracles of the CUDA kernels. Sums in fp64.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "ops/cpu/float_types.h"
#include "ops/flow_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

at::Tensor flow_mix_cpu(const at::Tensor& actions, const at::Tensor& noise,
                        const at::Tensor& time) {
  const FlowShape shape = check_flow_mix(actions, noise, time);
  at::Tensor x_t = at::empty_like(actions);
  if (actions.numel() == 0) return x_t;
  dispatch_float("flow_mix", actions.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor time_acc = time.to(acc_type<Acc>());
    const Acc* t = time_acc.const_data_ptr<Acc>();
    const T* a = actions.const_data_ptr<T>();
    const T* n = noise.const_data_ptr<T>();
    T* out = x_t.mutable_data_ptr<T>();
    const int64_t per_sample = actions.numel() / shape.num_samples;
    for (int64_t i = 0; i < actions.numel(); ++i) {
      const Acc here = t[i / per_sample];
      out[i] =
          static_cast<T>(here * static_cast<Acc>(n[i]) + (Acc(1) - here) * static_cast<Acc>(a[i]));
    }
  });
  return x_t;
}

const bool* padding(const std::optional<at::Tensor>& is_pad) {
  return is_pad.has_value() ? is_pad->const_data_ptr<bool>() : nullptr;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flow_loss_cpu(
    const at::Tensor& v, const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
    const std::optional<at::Tensor>& is_pad) {
  const FlowShape shape = check_flow_loss("flow_loss", v, actions, noise, dims, is_pad);
  const auto options = v.options().dtype(acc_type_of(v.scalar_type()));
  at::Tensor loss = at::empty({}, options);
  at::Tensor loss_all = at::empty({}, options);
  at::Tensor count = at::empty({}, options);
  dispatch_float("flow_loss", v.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor actions_acc = actions.to(acc_type<Acc>());
    const at::Tensor noise_acc = noise.to(acc_type<Acc>());
    const T* velocity = v.const_data_ptr<T>();
    const Acc* a = actions_acc.const_data_ptr<Acc>();
    const Acc* n = noise_acc.const_data_ptr<Acc>();
    const bool* pad = padding(is_pad);
    double sum = 0, sum_all = 0;
    int64_t steps = 0;
    for (int64_t step = 0; step < shape.num_steps; ++step) {
      if (pad != nullptr && pad[step]) continue;
      ++steps;
      for (int64_t d = 0; d < shape.width; ++d) {
        const int64_t i = step * shape.width + d;
        const Acc difference = static_cast<Acc>(velocity[i]) - (n[i] - a[i]);
        const double square = static_cast<double>(difference) * static_cast<double>(difference);
        sum_all += square;
        if (d < dims) sum += square;
      }
    }
    const auto divisor = static_cast<double>(std::max<int64_t>(steps, 1));
    *count.mutable_data_ptr<Acc>() = static_cast<Acc>(divisor * static_cast<double>(dims));
    *loss.mutable_data_ptr<Acc>() = static_cast<Acc>(sum / (divisor * static_cast<double>(dims)));
    *loss_all.mutable_data_ptr<Acc>() =
        static_cast<Acc>(sum_all / (divisor * static_cast<double>(shape.width)));
  });
  return {loss, loss_all, count};
}

at::Tensor flow_loss_backward_cpu(const at::Tensor& dloss, const at::Tensor& v,
                                  const at::Tensor& actions, const at::Tensor& noise, int64_t dims,
                                  const std::optional<at::Tensor>& is_pad,
                                  const at::Tensor& count) {
  const FlowShape shape = check_flow_loss("flow_loss_backward", v, actions, noise, dims, is_pad);
  const at::ScalarType scalar = acc_type_of(v.scalar_type());
  check_dtype("flow_loss_backward", {"dloss", dloss}, scalar);
  check_dtype("flow_loss_backward", {"count", count}, scalar);
  at::Tensor dv = at::empty_like(v);
  dispatch_float("flow_loss_backward", v.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor actions_acc = actions.to(acc_type<Acc>());
    const at::Tensor noise_acc = noise.to(acc_type<Acc>());
    const T* velocity = v.const_data_ptr<T>();
    const Acc* a = actions_acc.const_data_ptr<Acc>();
    const Acc* n = noise_acc.const_data_ptr<Acc>();
    const bool* pad = padding(is_pad);
    T* out = dv.mutable_data_ptr<T>();
    const Acc factor = Acc(2) * *dloss.const_data_ptr<Acc>() / *count.const_data_ptr<Acc>();
    for (int64_t i = 0; i < v.numel(); ++i) {
      const bool ignored = i % shape.width >= dims || (pad != nullptr && pad[i / shape.width]);
      out[i] =
          ignored ? T(0) : static_cast<T>((static_cast<Acc>(velocity[i]) - (n[i] - a[i])) * factor);
    }
  });
  return dv;
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("flow_mix", flow_mix_cpu);
  m.impl("flow_loss", flow_loss_cpu);
  m.impl("flow_loss_backward", flow_loss_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
