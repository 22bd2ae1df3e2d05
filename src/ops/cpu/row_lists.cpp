// Checks of row_lists.h, and the CPU implementation: the oracle of the CUDA kernels.
#include "ops/row_lists.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/error.h"
#include "ops/cpu/float_types.h"
#include "ops/row_lists_internal.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

void check_type(const char* op, const NamedTensor& tensor) {
  const at::ScalarType type = tensor.tensor.scalar_type();
  LS_CHECK(type == at::kFloat || type == at::kBFloat16, ShapeError,
           "{}: {} must be fp32 or bf16, got {}", op, tensor.name, at::toString(type));
}

void check_rank(const char* op, const NamedTensor& tensor, int64_t rank, const char* sizes) {
  LS_CHECK(tensor.tensor.dim() == rank, ShapeError, "{}: {} must be {}, got [{}]", op, tensor.name,
           sizes, fmt::join(tensor.tensor.sizes(), ", "));
}

/// From 1 to what an int32 holds.
void check_extent(const char* op, const char* what, int64_t extent) {
  LS_CHECK(extent >= 1 && extent <= kMaxInt, ShapeError, "{}: {} = {}; from 1 to {}", op, what,
           extent, kMaxInt);
}

void check_pack_rows(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
                     const at::Tensor& values) {
  constexpr const char* kOp = "pack_rows";
  check_rank(kOp, {"table", table}, 2, "[V, C]");
  check_rank(kOp, {"values", values}, 2, "[K, C]");
  check_extent(kOp, "V, the rows of the table,", table.size(0));
  check_extent(kOp, "C, the columns of the table,", table.size(1));
  check_extent(kOp, "K, the places of the list,", values.size(0));
  check_sizes(kOp, {"values", values}, {values.size(0), table.size(1)});
  check_sizes(kOp, {"flags", flags}, {table.size(0)});
  check_sizes(kOp, {"rows", rows}, {values.size(0) + 1});
  check_type(kOp, {"table", table});
  check_dtype(kOp, {"values", values}, table.scalar_type());
  check_dtype(kOp, {"flags", flags}, at::kByte);
  check_dtype(kOp, {"rows", rows}, at::kInt);
  check_contiguous(kOp, {{"table", table}, {"flags", flags}, {"rows", rows}, {"values", values}});
  check_devices(kOp, {{"table", table}, {"flags", flags}, {"rows", rows}, {"values", values}});
}

/// `out` is a stretch of the table.
void check_part(const char* op, const at::Tensor& out, int64_t begin, int64_t table_rows,
                int64_t width) {
  LS_CHECK(begin >= 0 && begin <= table_rows * width - out.numel(), ShapeError,
           "{}: out is the elements [{}, {}) of a table of {} x {} = {}", op, begin,
           begin + out.numel(), table_rows, width, table_rows * width);
}

void check_sum_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                         const at::Tensor& values, const at::Tensor& slots, double divisor,
                         const at::Tensor& flags) {
  constexpr const char* kOp = "sum_row_lists";
  check_rank(kOp, {"out", out}, 1, "[n]");
  check_rank(kOp, {"values", values}, 3, "[W, K, C]");
  check_rank(kOp, {"slots", slots}, 2, "[W, V]");
  const int64_t lists = values.size(0), places = values.size(1), width = values.size(2);
  const int64_t table_rows = slots.size(1);
  check_extent(kOp, "W, the number of lists,", lists);
  check_extent(kOp, "V, the rows of the table,", table_rows);
  check_extent(kOp, "C, the columns of the table,", width);
  check_extent(kOp, "K, the places of a list,", places);
  check_sizes(kOp, {"slots", slots}, {lists, table_rows});
  check_sizes(kOp, {"rows", rows}, {lists, places + 1});
  check_type(kOp, {"out", out});
  check_type(kOp, {"values", values});
  check_dtype(kOp, {"rows", rows}, at::kInt);
  check_dtype(kOp, {"slots", slots}, at::kInt);
  check_contiguous(kOp, {{"out", out}, {"rows", rows}, {"values", values}, {"slots", slots}});
  check_devices(kOp, {{"out", out}, {"rows", rows}, {"values", values}, {"slots", slots}});
  if (flags.defined()) {
    check_sizes(kOp, {"flags", flags}, {table_rows});
    check_dtype(kOp, {"flags", flags}, at::kByte);
    check_contiguous(kOp, {{"flags", flags}});
    check_devices(kOp, {{"out", out}, {"flags", flags}});
  }
  check_part(kOp, out, begin, table_rows, width);
  const auto rounded = static_cast<float>(divisor);
  LS_CHECK(rounded > 0 && std::isfinite(rounded), ShapeError,
           "{}: divisor {}; must be a positive number of fp32", kOp, divisor);
}

void check_clear_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                           int64_t table_rows, int64_t width) {
  constexpr const char* kOp = "clear_row_lists";
  check_rank(kOp, {"out", out}, 1, "[n]");
  check_rank(kOp, {"rows", rows}, 2, "[W, K + 1]");
  check_extent(kOp, "W, the number of lists,", rows.size(0));
  check_extent(kOp, "V, the rows of the table,", table_rows);
  check_extent(kOp, "C, the columns of the table,", width);
  check_extent(kOp, "K, the places of a list,", rows.size(1) - 1);
  check_type(kOp, {"out", out});
  check_dtype(kOp, {"rows", rows}, at::kInt);
  check_contiguous(kOp, {{"out", out}, {"rows", rows}});
  check_devices(kOp, {{"out", out}, {"rows", rows}});
  check_part(kOp, out, begin, table_rows, width);
}

/// By the bits, so that no mode of the processor takes the smallest numbers for zeros.
template <class T>
bool is_zero(const T& value) {
  std::conditional_t<sizeof(T) == 2, uint16_t,
                     std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>
      bits;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<decltype(bits)>(bits << 1) == 0;
}

template <class T>
void pack_rows_cpu(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
                   const at::Tensor& values, bool clear) {
  const int64_t places = values.size(0), width = table.size(1);
  const uint8_t* flag = flags.const_data_ptr<uint8_t>();
  int32_t* row_of = rows.mutable_data_ptr<int32_t>();
  T* to = values.mutable_data_ptr<T>();
  std::fill_n(row_of, places, -1);
  int64_t count = 0;
  for (int64_t row = 0; row < table.size(0); ++row) {
    if (flag[row] == 0) continue;
    T* from = table.mutable_data_ptr<T>() + row * width;
    if (std::all_of(from, from + width, is_zero<T>)) continue;
    if (count < places) {
      row_of[count] = static_cast<int32_t>(row);
      std::copy_n(from, width, to + count * width);
    }
    if (clear) std::fill_n(from, width, T(0));
    ++count;
  }
  row_of[places] = static_cast<int32_t>(count);
}

struct Lists {
  const int32_t* rows;  // [lists, places + 1]
  int32_t* slots;       // [lists, table_rows]
  int64_t lists, places, width, table_rows;

  int64_t row(int64_t list, int64_t place) const { return rows[list * (places + 1) + place]; }
  int32_t& slot(int64_t list, int64_t row) const { return slots[list * table_rows + row]; }
  bool in_table(int64_t row) const { return row >= 0 && row < table_rows; }

  void fill_slots() const {
    std::fill_n(slots, lists * table_rows, -1);
    for (int64_t list = 0; list < lists; ++list) {
      for (int64_t place = 0; place < places; ++place) {
        const int64_t v = row(list, place);
        if (in_table(v)) slot(list, v) = static_cast<int32_t>(place);
      }
    }
  }
  bool complete() const {
    for (int64_t list = 0; list < lists; ++list) {
      if (row(list, places) > places) return false;
    }
    return true;
  }
};

template <class T, class Out>
void sum_row_lists_cpu(const Lists& of, const T* values, Out* out, int64_t begin, int64_t end,
                       float divisor, uint8_t* flags) {
  of.fill_slots();
  const bool complete = of.complete();
  for (int64_t v = 0; v < of.table_rows; ++v) {
    bool listed = false;
    for (int64_t list = 0; list < of.lists; ++list) listed = listed || of.slot(list, v) >= 0;
    if (!listed) continue;
    if (flags != nullptr) flags[v] = 1;
    const int64_t last = std::min((v + 1) * of.width, end);
    for (int64_t flat = std::max(v * of.width, begin); flat < last; ++flat) {
      float sum = -0.0f;  // -0 + x is x, also for a zero of either sign
      for (int64_t list = 0; list < of.lists; ++list) {
        const int64_t slot = of.slot(list, v);
        if (slot < 0) continue;
        const int64_t place = list * of.places + slot;
        sum += static_cast<float>(values[(place - v) * of.width + flat]) / divisor;
      }
      out[flat - begin] =
          static_cast<Out>(complete ? sum : std::numeric_limits<float>::quiet_NaN());
    }
  }
}

}  // namespace

void pack_rows(const at::Tensor& table, const at::Tensor& flags, const at::Tensor& rows,
               const at::Tensor& values, bool clear) {
  check_pack_rows(table, flags, rows, values);
  if (!table.is_cpu()) return pack_rows_device(table, flags, rows, values, clear);
  dispatch_float("pack_rows", table.scalar_type(),
                 [&]<class T>(T, auto) { pack_rows_cpu<T>(table, flags, rows, values, clear); });
}

void sum_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                   const at::Tensor& values, const at::Tensor& slots, double divisor,
                   const at::Tensor& flags) {
  check_sum_row_lists(out, begin, rows, values, slots, divisor, flags);
  const auto rounded = static_cast<float>(divisor);
  if (!out.is_cpu()) {
    return sum_row_lists_device(out, begin, rows, values, slots, rounded, flags);
  }
  const Lists of{rows.const_data_ptr<int32_t>(),
                 slots.mutable_data_ptr<int32_t>(),
                 values.size(0),
                 values.size(1),
                 values.size(2),
                 slots.size(1)};
  uint8_t* flag = flags.defined() ? flags.mutable_data_ptr<uint8_t>() : nullptr;
  dispatch_float("sum_row_lists", values.scalar_type(), [&]<class T>(T, auto) {
    dispatch_float("sum_row_lists", out.scalar_type(), [&]<class Out>(Out, auto) {
      sum_row_lists_cpu<T, Out>(of, values.const_data_ptr<T>(), out.mutable_data_ptr<Out>(), begin,
                                begin + out.numel(), rounded, flag);
    });
  });
}

void clear_row_lists(const at::Tensor& out, int64_t begin, const at::Tensor& rows,
                     int64_t table_rows, int64_t width) {
  check_clear_row_lists(out, begin, rows, table_rows, width);
  if (!out.is_cpu()) return clear_row_lists_device(out, begin, rows, table_rows, width);
  const int64_t lists = rows.size(0), places = rows.size(1) - 1, end = begin + out.numel();
  const int32_t* numbers = rows.const_data_ptr<int32_t>();
  dispatch_float("clear_row_lists", out.scalar_type(), [&]<class T>(T, auto) {
    T* to = out.mutable_data_ptr<T>();
    for (int64_t i = 0; i < lists * places; ++i) {
      const int64_t row = numbers[i / places * (places + 1) + i % places];
      if (row < 0 || row >= table_rows) continue;
      const int64_t first = std::max(row * width, begin), last = std::min((row + 1) * width, end);
      if (first < last) std::fill(to + first - begin, to + last - begin, T(0));
    }
  });
}

#ifndef LS_OPS_CUDA
void pack_rows_device(const at::Tensor& table, const at::Tensor&, const at::Tensor&,
                      const at::Tensor&, bool) {
  throw DeviceError(
      fmt::format("pack_rows: no implementation for device {}", table.device().str()));
}

void sum_row_lists_device(const at::Tensor& out, int64_t, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, float, const at::Tensor&) {
  throw DeviceError(
      fmt::format("sum_row_lists: no implementation for device {}", out.device().str()));
}

void clear_row_lists_device(const at::Tensor& out, int64_t, const at::Tensor&, int64_t, int64_t) {
  throw DeviceError(
      fmt::format("clear_row_lists: no implementation for device {}", out.device().str()));
}
#endif

}  // namespace longship::ops
