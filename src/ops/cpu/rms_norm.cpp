// CPU implementation of rms_norm: the oracle of the CUDA kernels and the fast path of a laptop run.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "ops/rms_norm_check.h"

namespace longship::ops {
namespace {

// Rows per partial sum of dscale and dshift. A constant, so that results do not depend on the
// number of threads.
constexpr int64_t kRowsPerChunk = 64;

template <class Acc>
at::ScalarType acc_type() {
  return std::is_same_v<Acc, double> ? at::kDouble : at::kFloat;
}

template <class T, class Acc>
void forward(const at::Tensor& x, const at::Tensor& scale, const Acc* shift, double eps,
             const RmsNormShape& shape, at::Tensor& y, at::Tensor& rstd) {
  const int64_t width = shape.width;
  const int64_t rows_per_group = shape.num_rows / shape.num_groups;
  const T* x_data = x.const_data_ptr<T>();
  const Acc* scale_data = scale.const_data_ptr<Acc>();
  T* y_data = y.mutable_data_ptr<T>();
  Acc* rstd_data = rstd.mutable_data_ptr<Acc>();
  at::parallel_for(0, shape.num_rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* in = x_data + row * width;
      T* out = y_data + row * width;
      const Acc* s = scale_data + (row / rows_per_group) * width;
      Acc sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; ++i) sum += static_cast<Acc>(in[i]) * static_cast<Acc>(in[i]);
      const Acc r = Acc(1) / std::sqrt(sum / static_cast<Acc>(width) + static_cast<Acc>(eps));
      rstd_data[row] = r;
      if (shift == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i)
          out[i] = static_cast<T>(static_cast<Acc>(in[i]) * r * (Acc(1) + s[i]));
      } else {
        const Acc* b = shift + (row / rows_per_group) * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
          out[i] = static_cast<T>(static_cast<Acc>(in[i]) * r * (Acc(1) + s[i]) + b[i]);
        }
      }
    }
  });
}

/// dx of rows [begin, end) and their sums into dscale and dshift (accumulated).
template <class T, class Acc>
void backward_rows(const T* dy, const T* x, const Acc* s, const Acc* rstd, T* dx, Acc* dscale,
                   Acc* dshift, int64_t begin, int64_t end, int64_t width) {
  for (int64_t row = begin; row < end; ++row) {
    const T* g = dy + row * width;
    const T* in = x + row * width;
    T* out = dx + row * width;
    const Acc r = rstd[row];
    Acc sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) {
      const Acc product = static_cast<Acc>(g[i]) * static_cast<Acc>(in[i]) * r;
      dscale[i] += product;
      sum += product * (Acc(1) + s[i]);
    }
    if (dshift != nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) dshift[i] += static_cast<Acc>(g[i]);
    }
    const Acc mean = sum / static_cast<Acc>(width);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      out[i] = static_cast<T>(
          r * (static_cast<Acc>(g[i]) * (Acc(1) + s[i]) - static_cast<Acc>(in[i]) * r * mean));
    }
  }
}

template <class T, class Acc>
void backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& scale,
              const at::Tensor& rstd, const RmsNormShape& shape, at::Tensor& dx, at::Tensor& dscale,
              at::Tensor& dshift, bool has_shift) {
  const int64_t width = shape.width;
  const int64_t rows_per_group = shape.num_rows / shape.num_groups;
  const int64_t chunks_per_group = (rows_per_group + kRowsPerChunk - 1) / kRowsPerChunk;
  const int64_t num_chunks = chunks_per_group * shape.num_groups;
  std::vector<Acc> partial(static_cast<size_t>(num_chunks * 2 * width), Acc(0));
  const T* dy_data = dy.const_data_ptr<T>();
  const T* x_data = x.const_data_ptr<T>();
  const Acc* scale_data = scale.const_data_ptr<Acc>();
  const Acc* rstd_data = rstd.const_data_ptr<Acc>();
  T* dx_data = dx.mutable_data_ptr<T>();
  at::parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t group = chunk / chunks_per_group;
      const int64_t first = group * rows_per_group + (chunk % chunks_per_group) * kRowsPerChunk;
      const int64_t last = std::min(first + kRowsPerChunk, (group + 1) * rows_per_group);
      Acc* sums = partial.data() + chunk * 2 * width;
      backward_rows<T, Acc>(dy_data, x_data, scale_data + group * width, rstd_data, dx_data, sums,
                            has_shift ? sums + width : nullptr, first, last, width);
    }
  });
  Acc* dscale_data = dscale.mutable_data_ptr<Acc>();
  Acc* dshift_data = has_shift ? dshift.mutable_data_ptr<Acc>() : nullptr;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t offset = (chunk / chunks_per_group) * width;
    const Acc* sums = partial.data() + chunk * 2 * width;
    for (int64_t i = 0; i < width; ++i) dscale_data[offset + i] += sums[i];
    for (int64_t i = 0; has_shift && i < width; ++i) dshift_data[offset + i] += sums[width + i];
  }
}

/// Calls `fn` with the element and accumulation types of x.
template <class Fn>
void dispatch(at::ScalarType type, Fn&& fn) {
  switch (type) {
    case at::kFloat:
      return fn(float{}, float{});
    case at::kBFloat16:
      return fn(at::BFloat16{}, float{});
    case at::kDouble:
      return fn(double{}, double{});
    default:
      throw ShapeError(fmt::format(
          "rms_norm: dtype {} is not supported on the CPU; use float32, bfloat16 or float64",
          at::toString(type)));
  }
}

std::tuple<at::Tensor, at::Tensor> rms_norm_cpu(const at::Tensor& x, const at::Tensor& scale,
                                                const std::optional<at::Tensor>& shift,
                                                double eps) {
  const RmsNormShape shape = check_rms_norm(x, scale, shift);
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor rstd;
  dispatch(x.scalar_type(), [&](auto element, auto acc) {
    using T = decltype(element);
    using Acc = decltype(acc);
    rstd = at::empty({shape.num_rows}, x.options().dtype(acc_type<Acc>()));
    const at::Tensor s = scale.to(acc_type<Acc>()).contiguous();
    const at::Tensor b = shift.has_value() ? shift->to(acc_type<Acc>()).contiguous() : at::Tensor();
    forward<T, Acc>(x, s, b.defined() ? b.const_data_ptr<Acc>() : nullptr, eps, shape, y, rstd);
  });
  return {y, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rms_norm_backward_cpu(const at::Tensor& dy,
                                                                     const at::Tensor& x,
                                                                     const at::Tensor& scale,
                                                                     const at::Tensor& rstd,
                                                                     bool has_shift) {
  const RmsNormShape shape = check_rms_norm(x, scale, std::nullopt);
  at::Tensor dx = at::empty(x.sizes(), x.options());
  at::Tensor dscale;
  at::Tensor dshift;
  dispatch(x.scalar_type(), [&](auto element, auto acc) {
    using T = decltype(element);
    using Acc = decltype(acc);
    const auto options = x.options().dtype(acc_type<Acc>());
    dscale = at::zeros(scale.sizes(), options);
    dshift = has_shift ? at::zeros(scale.sizes(), options) : at::empty({0}, options);
    const at::Tensor s = scale.to(acc_type<Acc>()).contiguous();
    backward<T, Acc>(dy.contiguous(), x, s, rstd, shape, dx, dscale, dshift, has_shift);
  });
  return {dx, dscale.to(scale.scalar_type()), dshift.to(scale.scalar_type())};
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("rms_norm", rms_norm_cpu);
  m.impl("rms_norm_backward", rms_norm_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
