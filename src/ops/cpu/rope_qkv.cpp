// CPU implementation of rope_qkv: the oracle of the CUDA kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "ops/cpu/float_types.h"
#include "ops/position_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

int64_t valid_rows(const RopeQkvSizes& s, const std::optional<at::Tensor>& rows_valid) {
  if (!rows_valid.has_value()) return s.num_rows;
  return std::clamp<int64_t>(*rows_valid->const_data_ptr<int32_t>(), 0, s.num_rows);
}

void check_positions(const char* op, const at::Tensor& positions, int64_t num_valid,
                     int64_t table_rows) {
  const int32_t* position = positions.const_data_ptr<int32_t>();
  for (int64_t row = 0; row < num_valid; ++row) {
    LS_CHECK(position[row] >= 0 && position[row] < table_rows, ShapeError,
             "{}: position {} of row {} is outside the table of {} rows", op, position[row], row,
             table_rows);
  }
}

/// Moves `heads` heads of a row, turned by the angles unless cos is null; zero where `in` is null.
template <class T, class Acc>
void move_heads(const T* in, T* out, int64_t heads, int64_t head_dim, const Acc* cos,
                const Acc* sin, Acc sign) {
  const int64_t half = head_dim / 2;
  for (int64_t h = 0; h < heads; ++h) {
    T* to = out + h * head_dim;
    if (in == nullptr) {
      std::fill(to, to + head_dim, T(0));
      continue;
    }
    const T* from = in + h * head_dim;
    if (cos == nullptr) {
      std::copy(from, from + head_dim, to);
      continue;
    }
    for (int64_t i = 0; i < half; ++i) {
      const Acc x1 = static_cast<Acc>(from[i]), x2 = static_cast<Acc>(from[half + i]);
      to[i] = static_cast<T>(x1 * cos[i] - x2 * sign * sin[i]);
      to[half + i] = static_cast<T>(x2 * cos[i] + x1 * sign * sin[i]);
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rope_qkv_cpu(
    const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
    const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
    const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes s = check_rope_tables("rope_qkv", cos, sin, positions, num_heads, num_kv_heads,
                                           head_dim, rows_valid);
  check_sizes("rope_qkv", {"qkv", qkv}, {s.num_rows, s.row_width()});
  check_contiguous("rope_qkv", {{"qkv", qkv}});
  const int64_t num_valid = valid_rows(s, rows_valid);
  check_positions("rope_qkv", positions, num_valid, cos.size(0));
  at::Tensor q = at::empty({s.num_rows, num_heads, head_dim}, qkv.options());
  at::Tensor k = at::empty({s.num_rows, num_kv_heads, head_dim}, qkv.options());
  at::Tensor v = at::empty({s.num_rows, num_kv_heads, head_dim}, qkv.options());
  dispatch_float("rope_qkv", qkv.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor cos_acc = cos.to(acc_type<Acc>()), sin_acc = sin.to(acc_type<Acc>());
    const Acc* c = cos_acc.const_data_ptr<Acc>();
    const Acc* n = sin_acc.const_data_ptr<Acc>();
    const T* in = qkv.const_data_ptr<T>();
    const int32_t* position = positions.const_data_ptr<int32_t>();
    T* out[3] = {q.mutable_data_ptr<T>(), k.mutable_data_ptr<T>(), v.mutable_data_ptr<T>()};
    const int64_t heads[3] = {num_heads, num_kv_heads, num_kv_heads};
    at::parallel_for(0, s.num_rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const bool valid = row < num_valid;
        const int64_t at = valid ? position[row] * (head_dim / 2) : 0;
        const T* from = valid ? in + row * s.row_width() : nullptr;
        for (int i = 0; i < 3; ++i) {
          const int64_t size = heads[i] * head_dim;
          move_heads<T, Acc>(from, out[i] + row * size, heads[i], head_dim,
                             i < 2 ? c + at : nullptr, n + at, Acc(1));
          if (valid) from += size;
        }
      }
    });
  });
  return {q, k, v};
}

at::Tensor rope_qkv_backward_cpu(const std::optional<at::Tensor>& dq,
                                 const std::optional<at::Tensor>& dk,
                                 const std::optional<at::Tensor>& dv, const at::Tensor& cos,
                                 const at::Tensor& sin, const at::Tensor& positions,
                                 int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                 const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes s = check_rope_tables("rope_qkv_backward", cos, sin, positions, num_heads,
                                           num_kv_heads, head_dim, rows_valid);
  const at::Tensor like = check_rope_gradients("rope_qkv_backward", s, dq, dk, dv);
  const int64_t num_valid = valid_rows(s, rows_valid);
  check_positions("rope_qkv_backward", positions, num_valid, cos.size(0));
  at::Tensor d_qkv = at::empty({s.num_rows, s.row_width()}, like.options());
  const auto dense = [](const std::optional<at::Tensor>& gradient) {
    return gradient.has_value() ? gradient->contiguous() : at::Tensor();
  };
  const at::Tensor gradients[3] = {dense(dq), dense(dk), dense(dv)};
  dispatch_float("rope_qkv_backward", like.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const at::Tensor cos_acc = cos.to(acc_type<Acc>()), sin_acc = sin.to(acc_type<Acc>());
    const Acc* c = cos_acc.const_data_ptr<Acc>();
    const Acc* n = sin_acc.const_data_ptr<Acc>();
    const int32_t* position = positions.const_data_ptr<int32_t>();
    T* out = d_qkv.mutable_data_ptr<T>();
    const int64_t heads[3] = {num_heads, num_kv_heads, num_kv_heads};
    at::parallel_for(0, s.num_rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const bool valid = row < num_valid;
        const int64_t at = valid ? position[row] * (head_dim / 2) : 0;
        T* to = out + row * s.row_width();
        for (int i = 0; i < 3; ++i) {
          const int64_t size = heads[i] * head_dim;
          const T* from = valid && gradients[i].defined()
                              ? gradients[i].const_data_ptr<T>() + row * size
                              : nullptr;
          move_heads<T, Acc>(from, to, heads[i], head_dim, i < 2 ? c + at : nullptr, n + at,
                             Acc(-1));
          to += size;
        }
      }
    });
  });
  return d_qkv;
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("rope_qkv", rope_qkv_cpu);
  m.impl("rope_qkv_backward", rope_qkv_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
