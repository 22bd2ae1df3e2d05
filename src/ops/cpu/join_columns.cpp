#include "ops/join_columns.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sum.h>

#include "base/error.h"
#include "ops/join_columns_internal.h"

namespace longship::ops {

JoinedColumns join_columns(at::TensorList parts, bool with_sums) {
  LS_CHECK(!parts.empty(), ShapeError, "join_columns: no parts");
  for (const at::Tensor& part : parts) {
    LS_CHECK(part.dim() == 2 && part.size(0) == parts[0].size(0) &&
                 part.scalar_type() == parts[0].scalar_type() && part.device() == parts[0].device(),
             ShapeError,
             "join_columns: parts must be [{}, columns] of {} on {}; got {} dimensions, {} rows of "
             "{} on {}",
             parts[0].size(0), c10::toString(parts[0].scalar_type()), parts[0].device().str(),
             part.dim(), part.dim() > 0 ? part.size(0) : 0, c10::toString(part.scalar_type()),
             part.device().str());
  }
  const at::NoGradGuard no_grad;
  if (parts.size() == 1 && !with_sums) return {parts[0], {}};
  if (parts[0].is_cuda()) {
    if (auto joined = join_columns_device(parts, with_sums)) return *joined;
  }
  const at::Tensor values = parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  return {values, with_sums ? values.sum(0) : at::Tensor()};
}

#ifndef LS_OPS_CUDA
std::optional<JoinedColumns> join_columns_device(at::TensorList, bool) {
  return std::nullopt;
}
#endif

}  // namespace longship::ops
