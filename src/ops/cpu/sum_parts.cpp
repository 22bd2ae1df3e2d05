#include "ops/sum_parts.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "ops/sum_parts_internal.h"

namespace longship::ops {

void sum_parts(const at::Tensor& out, const std::vector<at::Tensor>& parts, double divisor,
               int64_t max_blocks) {
  const at::ScalarType type = out.scalar_type();
  LS_CHECK(!parts.empty() && parts.size() <= 8 && divisor > 0 && max_blocks > 0 &&
               (type == at::kFloat || type == at::kBFloat16) && out.is_contiguous(),
           ShapeError,
           "sum_parts: {} parts into {} elements of {}, divisor {}, {} blocks; 1 to 8 parts of "
           "contiguous fp32 or bf16, a positive divisor and a positive number of blocks",
           parts.size(), out.numel(), c10::toString(type), divisor, max_blocks);
  for (size_t p = 0; p < parts.size(); ++p) {
    const at::Tensor& part = parts[p];
    const bool fits =
        part.scalar_type() == parts.front().scalar_type() &&
        (part.scalar_type() == type || (part.scalar_type() == at::kBFloat16 && type == at::kFloat));
    LS_CHECK(fits && part.numel() == out.numel() && part.is_contiguous() &&
                 part.device() == out.device(),
             ShapeError, "sum_parts: part {} is {} elements of {} on {}, the sum {} of {} on {}", p,
             part.numel(), c10::toString(part.scalar_type()), part.device().str(), out.numel(),
             c10::toString(type), out.device().str());
  }
  const at::NoGradGuard no_grad;
  if (!out.is_cpu()) return sum_parts_device(out, parts, divisor, max_blocks);
  at::Tensor sum = parts.front().to(at::kFloat).div(divisor);
  for (size_t p = 1; p < parts.size(); ++p) sum.add_(parts[p].to(at::kFloat).div(divisor));
  at::Tensor(out).copy_(sum.view(out.sizes()));
}

#ifndef LS_OPS_CUDA
void sum_parts_device(const at::Tensor& out, const std::vector<at::Tensor>&, double, int64_t) {
  throw DeviceError(fmt::format("sum_parts: no implementation for device {}", out.device().str()));
}
#endif

}  // namespace longship::ops
