// CPU implementation of head_norm_rope: the oracle of the CUDA kernels.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "ops/cpu/norm_rows.h"
#include "ops/position_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

/// The parameters in the accumulation type.
template <class Acc>
struct Parameters {
  Parameters(const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
             double eps_)
      : q(q_weight.to(acc_type<Acc>())),
        k(k_weight.to(acc_type<Acc>())),
        cos_rows(cos.to(acc_type<Acc>())),
        sin_rows(sin.to(acc_type<Acc>())),
        dim(q.size(0)),
        eps(static_cast<Acc>(eps_)) {}
  const Acc* weight(bool query) const { return (query ? q : k).template const_data_ptr<Acc>(); }
  const Acc* cos(int64_t row) const { return cos_rows.const_data_ptr<Acc>() + row * dim / 2; }
  const Acc* sin(int64_t row) const { return sin_rows.const_data_ptr<Acc>() + row * dim / 2; }

  Tensor q, k, cos_rows, sin_rows;
  int64_t dim;
  Acc eps;
};

template <class T, class Acc>
Acc root(const T* x, const Parameters<Acc>& p) {
  Acc sum = 0;
  for (int64_t i = 0; i < p.dim; ++i) sum += static_cast<Acc>(x[i]) * static_cast<Acc>(x[i]);
  return Acc(1) / std::sqrt(sum / static_cast<Acc>(p.dim) + p.eps);
}

template <class T, class Acc>
void forward_head(const T* x, bool query, int64_t row, const Parameters<Acc>& p, T* out) {
  const Acc r = root<T, Acc>(x, p);
  const Acc *w = p.weight(query), *cos = p.cos(row), *sin = p.sin(row);
  const int64_t half = p.dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const Acc n1 = static_cast<Acc>(x[i]) * r * w[i];
    const Acc n2 = static_cast<Acc>(x[half + i]) * r * w[half + i];
    out[i] = static_cast<T>(n1 * cos[i] - n2 * sin[i]);
    out[half + i] = static_cast<T>(n2 * cos[i] + n1 * sin[i]);
  }
}

/// dy null: zero. `dn`: room for one head. Adds to dw.
template <class T, class Acc>
void backward_head(const T* x, const T* dy, bool query, int64_t row, const Parameters<Acc>& p,
                   Acc* dn, T* dx, Acc* dw) {
  if (dy == nullptr) {
    std::fill(dx, dx + p.dim, T(0));
    return;
  }
  const Acc r = root<T, Acc>(x, p);
  const Acc *w = p.weight(query), *cos = p.cos(row), *sin = p.sin(row);
  const int64_t half = p.dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const Acc d1 = static_cast<Acc>(dy[i]), d2 = static_cast<Acc>(dy[half + i]);
    dn[i] = d1 * cos[i] + d2 * sin[i];
    dn[half + i] = d2 * cos[i] - d1 * sin[i];
  }
  Acc sum = 0;
  for (int64_t i = 0; i < p.dim; ++i) {
    const Acc product = dn[i] * static_cast<Acc>(x[i]) * r;
    dw[i] += product;
    sum += product * w[i];
  }
  const Acc mean = sum / static_cast<Acc>(p.dim);
  for (int64_t i = 0; i < p.dim; ++i)
    dx[i] = static_cast<T>(r * (dn[i] * w[i] - static_cast<Acc>(x[i]) * r * mean));
}

std::tuple<Tensor, Tensor, Tensor> head_norm_rope_cpu(const Tensor& qkv, const Tensor& q_weight,
                                                      const Tensor& k_weight, const Tensor& cos,
                                                      const Tensor& sin, int64_t num_heads,
                                                      int64_t num_kv_heads, double eps) {
  const RopeQkvSizes s = check_head_norm_rope("head_norm_rope", qkv, q_weight, k_weight, cos, sin,
                                              num_heads, num_kv_heads);
  Tensor q = at::empty({s.num_rows, num_heads, s.head_dim}, qkv.options());
  Tensor k = at::empty({s.num_rows, num_kv_heads, s.head_dim}, qkv.options());
  dispatch_float("head_norm_rope", qkv.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const Parameters<Acc> p(q_weight, k_weight, cos, sin, eps);
    const T* in = qkv.const_data_ptr<T>();
    T *q_out = q.mutable_data_ptr<T>(), *k_out = k.mutable_data_ptr<T>();
    at::parallel_for(0, s.num_rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t head = 0; head < num_heads + num_kv_heads; ++head) {
          const bool query = head < num_heads;
          const int64_t place =
              query ? row * num_heads + head : row * num_kv_heads + head - num_heads;
          forward_head<T, Acc>(in + row * s.row_width() + head * s.head_dim, query, row, p,
                               (query ? q_out : k_out) + place * s.head_dim);
        }
      }
    });
  });
  return {q, k, value_heads(qkv, s)};
}

/// dq, dk, dv as contiguous rows.
template <class T>
struct HeadGradients {
  HeadGradients(const OptionalTensor& dq, const OptionalTensor& dk, const OptionalTensor& dv)
      : tensors{dense(dq), dense(dk), dense(dv)} {}
  static Tensor dense(const OptionalTensor& gradient) {
    return gradient.has_value() ? gradient->contiguous() : Tensor();
  }
  /// Null where there is no gradient.
  const T* row(int kind, int64_t row) const {
    const Tensor& t = tensors[kind];
    return t.defined() ? t.const_data_ptr<T>() + row * t.size(1) * t.size(2) : nullptr;
  }
  Tensor tensors[3];
};

template <class T, class Acc>
std::tuple<Tensor, Tensor, Tensor> backward(const RopeQkvSizes& s,
                                            const HeadGradients<T>& gradients, const Tensor& qkv,
                                            const Tensor& q_weight, const Tensor& k_weight,
                                            const Parameters<Acc>& p) {
  Tensor d_qkv = at::empty_like(qkv);
  const T* in = qkv.const_data_ptr<T>();
  T* out = d_qkv.mutable_data_ptr<T>();
  const cpu::RowChunks chunks(GroupedRows{s.num_rows, 1, s.head_dim});
  cpu::ChunkSums<Acc> q_sums(chunks, s.head_dim), k_sums(chunks, s.head_dim);
  at::parallel_for(0, chunks.num_chunks, 1, [&](int64_t first, int64_t last) {
    std::vector<Acc> dn(static_cast<size_t>(s.head_dim));
    for (int64_t chunk = first; chunk < last; ++chunk) {
      for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        int64_t at = row * s.row_width();
        const int64_t heads[3] = {s.num_heads, s.num_kv_heads, s.num_kv_heads};
        for (int kind = 0; kind < 3; ++kind) {
          const T* dy = gradients.row(kind, row);
          for (int64_t head = 0; head < heads[kind]; ++head, at += s.head_dim) {
            const T* given = dy == nullptr ? nullptr : dy + head * s.head_dim;
            if (kind < 2) {
              backward_head<T, Acc>(in + at, given, kind == 0, row, p, dn.data(), out + at,
                                    (kind == 0 ? q_sums : k_sums).row(chunk));
            } else if (given == nullptr) {
              std::fill(out + at, out + at + s.head_dim, T(0));
            } else {
              std::copy(given, given + s.head_dim, out + at);
            }
          }
        }
      }
    }
  });
  return {d_qkv, q_sums.total(q_weight, q_weight), k_sums.total(k_weight, k_weight)};
}

std::tuple<Tensor, Tensor, Tensor> head_norm_rope_backward_cpu(
    const OptionalTensor& dq, const OptionalTensor& dk, const OptionalTensor& dv, const Tensor& qkv,
    const Tensor& q_weight, const Tensor& k_weight, const Tensor& cos, const Tensor& sin,
    int64_t num_heads, int64_t num_kv_heads, double eps) {
  constexpr const char* kOp = "head_norm_rope_backward";
  const RopeQkvSizes s =
      check_head_norm_rope(kOp, qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads);
  check_dtype(kOp, {"the gradients", check_rope_gradients(kOp, s, dq, dk, dv)}, qkv.scalar_type());
  std::tuple<Tensor, Tensor, Tensor> result;
  dispatch_float(kOp, qkv.scalar_type(), [&]<class T, class Acc>(T, Acc) {
    const Parameters<Acc> p(q_weight, k_weight, cos, sin, eps);
    result = backward<T, Acc>(s, HeadGradients<T>(dq, dk, dv), qkv, q_weight, k_weight, p);
  });
  return result;
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("head_norm_rope", head_norm_rope_cpu);
  m.impl("head_norm_rope_backward", head_norm_rope_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
