// CPU implementation of rms_norm and add_rms_norm: the oracle of the CUDA kernels and the fast path
// of a laptop run.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "ops/cpu/norm_rows.h"

namespace longship::ops {
namespace {

using cpu::ChunkSums;
using cpu::GroupRows;
using cpu::RowChunks;
using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

/// Rows handed to one thread at least.
constexpr int64_t kGrain = 16;

/// y and rstd of one row.
template <class T, class Acc>
Acc normalise_row(const T* in, const Acc* scale, const Acc* shift, double eps, Acc offset, T* out,
                  int64_t width) {
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) sum += static_cast<Acc>(in[i]) * static_cast<Acc>(in[i]);
  const Acc r = Acc(1) / std::sqrt(sum / static_cast<Acc>(width) + static_cast<Acc>(eps));
  if (shift == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      out[i] = static_cast<T>(static_cast<Acc>(in[i]) * r * (offset + scale[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      out[i] = static_cast<T>(static_cast<Acc>(in[i]) * r * (offset + scale[i]) + shift[i]);
    }
  }
  return r;
}

/// out = h + branch * gate; without a gate a plain addition.
template <class T, class Acc>
void add_row(const T* h, const T* branch, const Acc* gate, T* out, int64_t width) {
  if (gate == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      out[i] = static_cast<T>(static_cast<Acc>(h[i]) + static_cast<Acc>(branch[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i)
      out[i] = static_cast<T>(static_cast<Acc>(h[i]) + static_cast<Acc>(branch[i]) * gate[i]);
  }
}

/// Normalises x, or h + branch * gate written to h_out.
template <class T, class Acc>
Tensor forward(const GroupedRows& rows, const Tensor& h, const OptionalTensor& branch,
               const OptionalTensor& gate, const Tensor& scale, const OptionalTensor& shift,
               double eps, double offset, Tensor& h_out, Tensor& y) {
  const GroupRows<Acc> gate_rows(gate), scale_rows(scale), shift_rows(shift);
  const int64_t width = rows.width;
  Tensor rstd = at::empty({rows.num_rows}, h.options().dtype(acc_type<Acc>()));
  const T* h_data = h.const_data_ptr<T>();
  const T* branch_data = branch.has_value() ? branch->const_data_ptr<T>() : nullptr;
  T* x_data = branch.has_value() ? h_out.mutable_data_ptr<T>() : nullptr;
  T* y_data = y.mutable_data_ptr<T>();
  Acc* rstd_data = rstd.mutable_data_ptr<Acc>();
  at::parallel_for(0, rows.num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t group = row / (rows.num_rows / rows.num_groups);
      const int64_t at = row * width;
      const T* x = h_data + at;
      if (branch_data != nullptr) {
        add_row<T, Acc>(x, branch_data + at, gate_rows.row(group), x_data + at, width);
        x = x_data + at;
      }
      rstd_data[row] = normalise_row<T, Acc>(x, scale_rows.row(group), shift_rows.row(group), eps,
                                             static_cast<Acc>(offset), y_data + at, width);
    }
  });
  return rstd;
}

/// Pointers of the backward pass; those of absent arguments are null.
template <class T, class Acc>
struct BackwardData {
  const T *dh_out, *dy, *x, *branch;
  const Acc* rstd;
  Acc offset;
  T *dh, *dbranch;
};

/// Gradients of one row; its contributions are added to the sums.
template <class T, class Acc>
void backward_row(const BackwardData<T, Acc>& data, int64_t row, int64_t width, const Acc* gate,
                  const Acc* scale, Acc* dgate, Acc* dscale, Acc* dshift) {
  const int64_t at = row * width;
  const T* dy = data.dy + at;
  const T* x = data.x + at;
  const Acc r = data.rstd[row];
  Acc sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; ++i) {
    const Acc product = static_cast<Acc>(dy[i]) * static_cast<Acc>(x[i]) * r;
    dscale[i] += product;
    sum += product * (data.offset + scale[i]);
  }
  if (dshift != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dshift[i] += static_cast<Acc>(dy[i]);
  }
  const Acc mean = sum / static_cast<Acc>(width);
  const auto dh_at = [&](int64_t i) {
    return r *
           (static_cast<Acc>(dy[i]) * (data.offset + scale[i]) - static_cast<Acc>(x[i]) * r * mean);
  };
  T* dh = data.dh + at;
  if (data.dh_out == nullptr && gate == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) dh[i] = static_cast<T>(dh_at(i));
    return;
  }
  for (int64_t i = 0; i < width; ++i) {
    const Acc v = (data.dh_out ? static_cast<Acc>(data.dh_out[at + i]) : Acc(0)) + dh_at(i);
    dh[i] = static_cast<T>(v);
    if (gate == nullptr) continue;
    data.dbranch[at + i] = static_cast<T>(v * gate[i]);
    dgate[i] += v * static_cast<Acc>(data.branch[at + i]);
  }
}

struct Gradients {
  Tensor dh, dbranch, dgate, dscale, dshift;
};

template <class T, class Acc>
Gradients backward(const GroupedRows& rows, const OptionalTensor& dh_out, const Tensor& dy,
                   const Tensor& x, const Tensor& rstd, const OptionalTensor& branch,
                   const OptionalTensor& gate, const Tensor& scale, const OptionalTensor& shift,
                   double offset) {
  Gradients result;
  result.dh = at::empty_like(x);
  result.dbranch = gate.has_value() ? at::empty_like(x) : at::empty({0}, x.options());
  const BackwardData<T, Acc> data = {
      dh_out.has_value() ? dh_out->const_data_ptr<T>() : nullptr,
      dy.const_data_ptr<T>(),
      x.const_data_ptr<T>(),
      gate.has_value() ? branch->const_data_ptr<T>() : nullptr,
      rstd.const_data_ptr<Acc>(),
      static_cast<Acc>(offset),
      result.dh.mutable_data_ptr<T>(),
      result.dbranch.mutable_data_ptr<T>(),
  };
  const GroupRows<Acc> gate_rows(gate), scale_rows(scale);
  const RowChunks chunks(rows);
  ChunkSums<Acc> gate_sums(chunks, rows.width, gate.has_value());
  ChunkSums<Acc> scale_sums(chunks, rows.width);
  ChunkSums<Acc> shift_sums(chunks, rows.width, shift.has_value());
  at::parallel_for(0, chunks.num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t group = chunks.group(chunk);
      for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        backward_row<T, Acc>(data, row, rows.width, gate_rows.row(group), scale_rows.row(group),
                             gate_sums.row(chunk), scale_sums.row(chunk), shift_sums.row(chunk));
      }
    }
  });
  result.dgate = gate_sums.total(gate, scale);
  result.dscale = scale_sums.total(scale, scale);
  result.dshift = shift_sums.total(shift, scale);
  return result;
}

std::tuple<Tensor, Tensor> rms_norm_cpu(const Tensor& x, const Tensor& scale,
                                        const OptionalTensor& shift, double eps, double offset) {
  const GroupedRows rows = check_grouped_rows("rms_norm", x, {{"scale", scale}, {"shift", shift}});
  Tensor y = at::empty_like(x);
  Tensor none, rstd;
  dispatch_float("rms_norm", x.scalar_type(), [&](auto element, auto acc) {
    rstd = forward<decltype(element), decltype(acc)>(rows, x, std::nullopt, std::nullopt, scale,
                                                     shift, eps, offset, none, y);
  });
  return {y, rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_cpu(const Tensor& dy, const Tensor& x,
                                                         const Tensor& scale, const Tensor& rstd,
                                                         const OptionalTensor& shift,
                                                         double offset) {
  const GroupedRows rows =
      check_grouped_rows("rms_norm_backward", x, {{"scale", scale}, {"shift", shift}});
  check_like("rms_norm_backward", "dy", dy, x);
  Gradients g;
  dispatch_float("rms_norm_backward", x.scalar_type(), [&](auto element, auto acc) {
    g = backward<decltype(element), decltype(acc)>(rows, std::nullopt, dy, x, rstd, std::nullopt,
                                                   std::nullopt, scale, shift, offset);
  });
  return {g.dh, g.dscale, g.dshift};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_cpu(const Tensor& h, const Tensor& branch,
                                                    const OptionalTensor& gate, const Tensor& scale,
                                                    const OptionalTensor& shift, double eps,
                                                    double offset) {
  const GroupedRows rows =
      check_grouped_rows("add_rms_norm", h, {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like("add_rms_norm", "branch", branch, h);
  Tensor h_out = at::empty_like(h);
  Tensor y = at::empty_like(h);
  Tensor rstd;
  dispatch_float("add_rms_norm", h.scalar_type(), [&](auto element, auto acc) {
    rstd = forward<decltype(element), decltype(acc)>(rows, h, branch, gate, scale, shift, eps,
                                                     offset, h_out, y);
  });
  return {h_out, y, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_rms_norm_backward_cpu(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out, const Tensor& rstd,
    const OptionalTensor& branch, const OptionalTensor& gate, const Tensor& scale,
    const OptionalTensor& shift, double offset) {
  constexpr const char* kOp = "add_rms_norm_backward";
  const GroupedRows rows =
      check_grouped_rows(kOp, h_out, {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like(kOp, "dy", dy, h_out);
  if (dh_out.has_value()) check_like(kOp, "dh_out", *dh_out, h_out);
  if (gate.has_value()) check_like(kOp, "branch", branch.value(), h_out);
  Gradients g;
  dispatch_float(kOp, h_out.scalar_type(), [&](auto element, auto acc) {
    g = backward<decltype(element), decltype(acc)>(rows, dh_out, dy, h_out, rstd, branch, gate,
                                                   scale, shift, offset);
  });
  return {g.dh, g.dbranch, g.dgate, g.dscale, g.dshift};
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("rms_norm", rms_norm_cpu);
  m.impl("rms_norm_backward", rms_norm_backward_cpu);
  m.impl("add_rms_norm", add_rms_norm_cpu);
  m.impl("add_rms_norm_backward", add_rms_norm_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
