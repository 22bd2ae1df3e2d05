// CPU implementation of embedding_rows: the oracle of the CUDA kernels.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "ops/cpu/float_types.h"
#include "ops/embedding_rows_check.h"

namespace longship::ops {
namespace {

void check_range(const char* op, const at::Tensor& ids, int64_t vocab) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  for (int64_t t = 0; t < ids.numel(); ++t) {
    LS_CHECK(id[t] < vocab, ShapeError, "{}: ids[{}] = {} in a table of {} rows", op, t, id[t],
             vocab);
  }
}

at::Tensor embedding_rows_cpu(const at::Tensor& weight, const at::Tensor& ids, double scale,
                              int64_t /*pad_id*/, const std::optional<at::Tensor>& /*grad_rows*/,
                              const std::optional<at::Tensor>& /*row_flags*/) {
  check_embedding_rows(weight, ids);
  check_range("embedding_rows", ids, weight.size(0));
  const int64_t width = weight.size(1);
  at::Tensor y = at::empty({ids.size(0), width}, weight.options());
  dispatch_float("embedding_rows", weight.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const T* table = weight.const_data_ptr<T>();
    const int64_t* id = ids.const_data_ptr<int64_t>();
    T* out = y.mutable_data_ptr<T>();
    const Acc factor = static_cast<Acc>(scale);
    for (int64_t t = 0; t < ids.numel(); ++t, out += width) {
      if (id[t] < 0) {
        std::fill(out, out + width, T(0));
        continue;
      }
      const T* row = table + id[t] * width;
      for (int64_t i = 0; i < width; ++i)
        out[i] = static_cast<T>(static_cast<Acc>(row[i]) * factor);
    }
  });
  return y;
}

void embedding_rows_backward_cpu(const at::Tensor& dy, const at::Tensor& ids, double scale,
                                 int64_t pad_id, const at::Tensor& grad_rows,
                                 const at::Tensor& row_flags) {
  check_embedding_rows_backward(dy, ids, grad_rows, row_flags);
  check_range("embedding_rows_backward", ids, grad_rows.size(0));
  const int64_t* id = ids.const_data_ptr<int64_t>();
  std::map<int64_t, std::vector<int64_t>> places;
  for (int64_t t = 0; t < ids.numel(); ++t) {
    if (id[t] >= 0 && id[t] != pad_id) places[id[t]].push_back(t);
  }
  const int64_t width = grad_rows.size(1);
  uint8_t* flags = row_flags.mutable_data_ptr<uint8_t>();
  dispatch_float("embedding_rows_backward", dy.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    dispatch_float("embedding_rows_backward", grad_rows.scalar_type(), [&]<class G>(G, auto) {
      const T* in = dy.const_data_ptr<T>();
      G* out = grad_rows.mutable_data_ptr<G>();
      std::vector<Acc> sum(static_cast<size_t>(width));
      for (const auto& [row, list] : places) {
        flags[row] = 1;
        std::fill(sum.begin(), sum.end(), Acc(0));
        for (const int64_t t : list) {
          for (int64_t i = 0; i < width; ++i) {
            sum[static_cast<size_t>(i)] += static_cast<Acc>(in[t * width + i]);
          }
        }
        for (int64_t i = 0; i < width; ++i) {
          const Acc before = static_cast<Acc>(out[row * width + i]);
          out[row * width + i] =
              static_cast<G>(before + static_cast<Acc>(scale) * sum[static_cast<size_t>(i)]);
        }
      }
    });
  });
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("embedding_rows", embedding_rows_cpu);
  m.impl("embedding_rows_backward", embedding_rows_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
