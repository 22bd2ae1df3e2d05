// CUDA launches of row_lists on the current stream.
#include "kernels/exchange/row_lists.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/launch.h"
#include "ops/row_lists_internal.h"

namespace longship::ops {

void pack_rows_device(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
                      const at::Tensor& values, bool clear) {
  const c10::cuda::CUDAGuard guard(table.device());
  kernels::PackRowsArgs args;
  args.type = element_of("pack_rows", table);
  args.table = table.mutable_data_ptr();
  args.flags = flags.const_data_ptr<uint8_t>();
  args.rows = rows.mutable_data_ptr<int32_t>();
  args.values = values.mutable_data_ptr();
  args.table_rows = table.size(0);
  args.width = table.size(1);
  args.places = values.size(0);
  args.clear = clear;
  check_launch("pack_rows", kernels::pack_rows(args, c10::cuda::getCurrentCUDAStream()));
}

void sum_row_lists_device(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                          const at::Tensor& values, const at::Tensor& slots, float divisor,
                          const at::Tensor& flags) {
  const c10::cuda::CUDAGuard guard(out.device());
  kernels::SumRowListsArgs args;
  args.type = element_of("sum_row_lists", values);
  args.out_type = element_of("sum_row_lists", out);
  args.out = out.mutable_data_ptr();
  args.begin = begin;
  args.count = out.numel();
  args.rows = rows.const_data_ptr<int32_t>();
  args.values = values.const_data_ptr();
  args.slots = slots.mutable_data_ptr<int32_t>();
  args.flags = flags.defined() ? flags.mutable_data_ptr<uint8_t>() : nullptr;
  args.lists = values.size(0);
  args.places = values.size(1);
  args.width = values.size(2);
  args.table_rows = slots.size(1);
  args.divisor = divisor;
  check_launch("sum_row_lists", kernels::sum_row_lists(args, c10::cuda::getCurrentCUDAStream()));
}

void clear_row_lists_device(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                            int64_t table_rows, int64_t width) {
  const c10::cuda::CUDAGuard guard(out.device());
  kernels::ClearRowListsArgs args;
  args.type = element_of("clear_row_lists", out);
  args.out = out.mutable_data_ptr();
  args.begin = begin;
  args.count = out.numel();
  args.rows = rows.const_data_ptr<int32_t>();
  args.lists = rows.size(0);
  args.places = rows.size(1) - 1;
  args.width = width;
  args.table_rows = table_rows;
  check_launch("clear_row_lists",
               kernels::clear_row_lists(args, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace longship::ops
