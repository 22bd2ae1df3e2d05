#pragma once
// Argument checks shared by the implementations of flow_mix and flow_loss. They throw ShapeError
// naming the operator, the argument, and the expected and given shapes.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace longship::ops {

struct FlowShape {
  int64_t num_samples = 0;
  int64_t num_steps = 0;  // of all samples
  int64_t width = 0;
};

FlowShape check_flow_mix(const at::Tensor& actions, const at::Tensor& noise,
                         const at::Tensor& time);
FlowShape check_flow_loss(const char* op, const at::Tensor& v, const at::Tensor& actions,
                          const at::Tensor& noise, int64_t dims,
                          const std::optional<at::Tensor>& is_pad);

}  // namespace longship::ops
