// CPU implementations of zero_tail_ and permute_rows.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/position_check.h"

namespace longship::ops {
namespace {

int64_t row_bytes(const at::Tensor& x) {
  int64_t bytes = static_cast<int64_t>(x.element_size());
  for (int64_t d = 1; d < x.dim(); ++d) bytes *= x.size(d);
  return bytes;
}

void zero_tail_cpu(const at::Tensor& x, const at::Tensor& rows_valid) {
  check_zero_tail(x, rows_valid);
  const int64_t first = std::clamp<int64_t>(*rows_valid.const_data_ptr<int32_t>(), 0, x.size(0));
  const int64_t bytes = row_bytes(x);
  if (bytes == 0 || first == x.size(0)) return;
  std::memset(static_cast<char*>(x.mutable_data_ptr()) + first * bytes, 0,
              static_cast<size_t>((x.size(0) - first) * bytes));
}

at::Tensor gather(const char* op, const at::Tensor& x, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = index.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  const int64_t bytes = row_bytes(x);
  if (bytes == 0) return y;
  const int64_t* source = index.const_data_ptr<int64_t>();
  const char* in = static_cast<const char*>(x.const_data_ptr());
  char* out = static_cast<char*>(y.mutable_data_ptr());
  for (int64_t row = 0; row < index.size(0); ++row) {
    LS_CHECK(source[row] < x.size(0), ShapeError, "{}: index[{}] = {} of {} rows", op, row,
             source[row], x.size(0));
    if (source[row] < 0) {
      std::memset(out + row * bytes, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(out + row * bytes, in + source[row] * bytes, static_cast<size_t>(bytes));
    }
  }
  return y;
}

at::Tensor permute_rows_cpu(const at::Tensor& x, const at::Tensor& index,
                            const at::Tensor& inverse) {
  check_permute_rows(x, index, inverse);
  return gather("permute_rows", x, index);
}

at::Tensor permute_rows_backward_cpu(const at::Tensor& dy, const at::Tensor& inverse) {
  check_gather_rows("permute_rows_backward", dy, inverse);
  return gather("permute_rows_backward", dy, inverse);
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("zero_tail_", zero_tail_cpu);
  m.impl("permute_rows", permute_rows_cpu);
  m.impl("permute_rows_backward", permute_rows_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
