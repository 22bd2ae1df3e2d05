#pragma once
// The CUDA half of ops/row_lists.h; arguments are checked.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

void pack_rows_device(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
                      const at::Tensor& values, bool clear);
void sum_row_lists_device(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                          const at::Tensor& values, const at::Tensor& slots, float divisor,
                          const at::Tensor& flags);
void clear_row_lists_device(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                            int64_t table_rows, int64_t width);

}  // namespace longship::ops
