#include "dist/shard_optimizer.h"

#include <ATen/core/grad_mode.h>

namespace longship::dist {

double squared_norm(std::span<const ShardSlice> slices) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const ShardSlice& slice : slices) {
    sum += slice.grad.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

}  // namespace longship::dist
