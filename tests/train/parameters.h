#pragma once
// Parameters and gradients for the optimizer's tests.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "models/spec.h"

namespace longship::train {

inline at::Tensor normal(std::vector<int64_t> shape, uint64_t seed, double scale = 1.0) {
  at::Tensor t = at::empty(shape);
  fill_normal(make_key(seed, RngStream::kTest),
              std::span<float>(t.mutable_data_ptr<float>(), static_cast<size_t>(t.numel())));
  return t.mul(scale);
}

inline models::ParamInfo parameter(const std::string& name, at::Tensor value,
                                   models::ParamRole role = models::ParamRole::kTrainable) {
  value.requires_grad_(role == models::ParamRole::kTrainable);
  return {name, value, role};
}

inline void set_grad(models::ParamInfo& p, const at::Tensor& grad) {
  p.tensor.mutable_grad() = grad.to(p.tensor.device(), p.tensor.scalar_type());
}

}  // namespace longship::train
