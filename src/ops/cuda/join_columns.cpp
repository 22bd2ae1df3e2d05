// CUDA launch of join_columns on the current stream.
#include "kernels/linear/join_columns.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/join_columns_internal.h"

namespace longship::ops {
namespace {

bool fits(const at::Tensor& part) {
  const auto address = reinterpret_cast<uintptr_t>(part.const_data_ptr());
  return (part.scalar_type() == at::kBFloat16 || part.scalar_type() == at::kFloat) &&
         part.size(1) % 8 == 0 && part.size(1) > 0 && part.stride(1) == 1 &&
         part.stride(0) % 8 == 0 && part.stride(0) >= part.size(1) && address % 16 == 0;
}

}  // namespace

std::optional<JoinedColumns> join_columns_device(at::TensorList parts, bool with_sums) {
  if (parts.size() > kernels::kMaxJoinedParts) return std::nullopt;
  if (parts[0].size(0) > kernels::kMostJoinedRows) return std::nullopt;
  if (!std::all_of(parts.begin(), parts.end(), fits)) return std::nullopt;
  const c10::cuda::CUDAGuard guard(parts[0].device());
  kernels::JoinColumnsArgs args;
  args.element = element_of("join_columns", parts[0]);
  args.num_rows = parts[0].size(0);
  int64_t width = 0;
  for (const at::Tensor& part : parts) {
    args.parts[args.num_parts++] = {part.const_data_ptr(), part.stride(0), part.size(1)};
    width += part.size(1);
  }
  JoinedColumns out;
  out.values = parts[0];
  if (parts.size() > 1) {
    out.values = at::empty({args.num_rows, width}, parts[0].options());
    args.values = out.values.mutable_data_ptr();
  }
  if (with_sums) {
    out.sums = at::empty({width}, parts[0].options());
    args.sums = out.sums.mutable_data_ptr();
  }
  check_launch("join_columns", kernels::join_columns(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace longship::ops
