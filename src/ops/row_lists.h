#pragma once
// Row-sparse sums over processes: a table of which a step touches few rows is exchanged as a list
// of these rows. No dispatcher operators: nothing differentiates through them. All are
// asynchronous on the current stream, allocate nothing and can be captured. All tensors are
// contiguous and on one device, V, C and K are from 1 to 2^31 - 1; ShapeError for what does not
// fit.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace longship::ops {

/// Packs the rows of `table` [V, C] (fp32 or bf16) whose flag (flags [V] uint8) is not 0 and that
/// hold anything but zeros (NaN is something, -0 is zero). rows [K + 1] int32: the numbers of these
/// rows (on CUDA in any order), then -1; rows[K] is how many there are: where that is more than K,
/// the list is not complete. values [K, C] of the table's dtype: the rows, bit for bit, in the
/// order of `rows`; what lies behind the list is not written. `clear`: these rows, also those that
/// found no place, become zeros in the table.
void pack_rows(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
               const at::Tensor& values, bool clear);

/// out [n] (fp32 or bf16, need not be the lists' dtype) stands for the elements [begin, begin + n)
/// of a table [V, C] laid flat; neither need be a multiple of C. For every row that any of W lists
/// has: its elements in `out` = sum over the lists that have it, in their order, of value /
/// divisor, in fp32, rounded once. Elements of rows in no list stay as they are. The same bits on
/// every device and in every run, whatever the order inside the lists.
/// rows [W, K + 1] int32 and values [W, K, C] (fp32 or bf16): W lists of pack_rows. Where one of
/// them is not complete, every element that would be written becomes NaN: an incomplete sum is
/// never taken for a whole one. Numbers outside [0, V) are skipped.
/// slots [W, V] int32: scratch, overwritten. flags: undefined, or [V] uint8: becomes 1 for every
/// row in a list, whether its elements are in `out` or not; the others stay. divisor: positive.
void sum_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                   const at::Tensor& values, const at::Tensor& slots, double divisor,
                   const at::Tensor& flags);

/// The elements of all rows in W lists become zeros: out [n] (fp32 or bf16) stands for the elements
/// [begin, begin + n) of a table [V, C] laid flat, rows [W, K + 1] int32 are lists of pack_rows.
/// Numbers outside [0, V) are skipped.
void clear_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                     int64_t table_rows, int64_t width);

}  // namespace longship::ops
