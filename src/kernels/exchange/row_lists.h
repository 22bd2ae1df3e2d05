#pragma once
// Lists of the few rows of a table that hold something, and the sum of several such lists.
// Host API of the CUDA kernels; plain pointers, no tensor library.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/dtype.h"

namespace longship::kernels {

/// rows[0, places) = numbers of the rows of the table whose flag is not 0 and that hold anything
/// but zeros, in any order, then -1; rows[places] = how many there are, be it more than `places`;
/// values[i] = row number rows[i]. `clear`: all these rows become zeros in the table.
/// 16 bytes at a time where width is a multiple of 8 and table and values are aligned so.
struct PackRowsArgs {
  ElementType type = ElementType::kFloat32;  // of table and values
  void* table = nullptr;                     // [table_rows, width]
  const uint8_t* flags = nullptr;            // [table_rows]
  int32_t* rows = nullptr;                   // [places + 1]
  void* values = nullptr;                    // [places, width]
  int64_t table_rows = 0;                    // this, width and places: 1 to 2^31 - 1
  int64_t width = 0;
  int64_t places = 0;
  bool clear = false;
};

/// For every row that a list has: out[row * width + column - begin] = sum over the lists with that
/// row, in their order, of values / divisor, in fp32, rounded once, for every place inside `out`.
/// NaN instead where rows[list][places] > places for any list. A list has a row at most once.
/// 16 bytes at a time where width, begin and count are multiples of 8, out and values aligned so.
struct SumRowListsArgs {
  ElementType type = ElementType::kFloat32;  // of values
  ElementType out_type = ElementType::kFloat32;
  void* out = nullptr;  // [count], the elements [begin, begin + count) of the table
  int64_t begin = 0;
  int64_t count = 0;
  const int32_t* rows = nullptr;  // [lists, places + 1]
  const void* values = nullptr;   // [lists, places, width]
  int32_t* slots = nullptr;       // [lists, table_rows], scratch
  uint8_t* flags = nullptr;       // [table_rows], 1 for every row in a list; may be null
  int64_t lists = 0;              // this and the next three: 1 to 2^31 - 1
  int64_t places = 0;
  int64_t width = 0;
  int64_t table_rows = 0;
  float divisor = 1;
};

/// out becomes zero in every row that a list has, for every place inside `out`.
struct ClearRowListsArgs {
  ElementType type = ElementType::kFloat32;
  void* out = nullptr;  // [count], the elements [begin, begin + count) of the table
  int64_t begin = 0;
  int64_t count = 0;
  const int32_t* rows = nullptr;  // [lists, places + 1]
  int64_t lists = 0;              // these: 1 to 2^31 - 1
  int64_t places = 0;
  int64_t width = 0;
  int64_t table_rows = 0;
};

/// Asynchronous on `stream`; two kernels.
cudaError_t pack_rows(const PackRowsArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`; three kernels.
cudaError_t sum_row_lists(const SumRowListsArgs& args, cudaStream_t stream);
/// Asynchronous on `stream`; one kernel.
cudaError_t clear_row_lists(const ClearRowListsArgs& args, cudaStream_t stream);

}  // namespace longship::kernels
