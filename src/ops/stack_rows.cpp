#include "ops/stack_rows.h"

#include <ATen/ops/cat.h>

#include <vector>

namespace longship::ops {

bool is_stacked(at::TensorList parts) {
  const at::Tensor& first = parts.front();
  const char* next = static_cast<const char*>(first.const_data_ptr());
  for (const at::Tensor& part : parts) {
    const bool follows = part.is_contiguous() && part.scalar_type() == first.scalar_type() &&
                         part.storage().is_alias_of(first.storage()) &&
                         part.const_data_ptr() == next;
    if (!follows) return false;
    next += part.nbytes();
  }
  return true;
}

at::Tensor stack_rows(at::TensorList parts) {
  if (parts.size() == 1) return parts.front().detach();
  if (parts.front().is_meta() || !is_stacked(parts)) return at::cat(parts).detach();
  std::vector<int64_t> shape = parts.front().sizes().vec();
  shape[0] = 0;
  for (const at::Tensor& part : parts) shape[0] += part.size(0);
  return parts.front().detach().as_strided(shape, parts.front().strides());
}

}  // namespace longship::ops
