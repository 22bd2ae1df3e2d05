// CPU implementation of layer_norm and add_layer_norm: the oracle of the CUDA kernels and the fast
// path of a laptop run.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "ops/cpu/layer_norm_rows.h"
#include "ops/cpu/norm_rows.h"

namespace longship::ops {
namespace {

using cpu::ChunkSums;
using cpu::GroupRows;
using cpu::RowChunks;
using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kGrain = 16;

struct Result {
  Tensor h_out, y, mean, rstd;
};

/// Normalises h, or h + branch written to h_out.
template <class T, class Acc>
Result forward(const GroupedRows& rows, const Tensor& h, const OptionalTensor& branch,
               const Tensor& weight, const Tensor& bias, double eps) {
  const int64_t width = rows.width;
  const auto statistics = h.options().dtype(acc_type<Acc>());
  Result result = {branch.has_value() ? at::empty_like(h) : Tensor(), at::empty_like(h),
                   at::empty({rows.num_rows}, statistics), at::empty({rows.num_rows}, statistics)};
  const GroupRows<Acc> weight_rows(weight), bias_rows(bias);
  const T* h_data = h.const_data_ptr<T>();
  const T* branch_data = branch.has_value() ? branch->const_data_ptr<T>() : nullptr;
  T* x_data = branch.has_value() ? result.h_out.mutable_data_ptr<T>() : nullptr;
  T* y_data = result.y.mutable_data_ptr<T>();
  Acc* mean_data = result.mean.mutable_data_ptr<Acc>();
  Acc* rstd_data = result.rstd.mutable_data_ptr<Acc>();
  at::parallel_for(0, rows.num_rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * width;
      const T* x = h_data + at;
      if (branch_data != nullptr) {
        for (int64_t i = 0; i < width; ++i) {
          x_data[at + i] =
              static_cast<T>(static_cast<Acc>(x[i]) + static_cast<Acc>(branch_data[at + i]));
        }
        x = x_data + at;
      }
      cpu::normalise_row(x, weight_rows.row(0), bias_rows.row(0), eps, y_data + at, mean_data[row],
                         rstd_data[row], width);
    }
  });
  return result;
}

struct Gradients {
  Tensor dh, dweight, dbias;
};

template <class T, class Acc>
Gradients backward(const GroupedRows& rows, const OptionalTensor& dh_out, const Tensor& dy,
                   const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                   const Tensor& bias) {
  Gradients result;
  result.dh = at::empty_like(x);
  const GroupRows<Acc> weight_rows(weight);
  const cpu::NormGradientData<T, T, Acc> data = {
      dh_out.has_value() ? dh_out->const_data_ptr<T>() : nullptr,
      dy.const_data_ptr<T>(),
      x.const_data_ptr<T>(),
      mean.const_data_ptr<Acc>(),
      rstd.const_data_ptr<Acc>(),
      result.dh.mutable_data_ptr<T>()};
  const RowChunks chunks(rows);
  ChunkSums<Acc> weight_sums(chunks, rows.width);
  ChunkSums<Acc> bias_sums(chunks, rows.width);
  at::parallel_for(0, chunks.num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        cpu::norm_gradient_row(data, row, rows.width, weight_rows.row(0), weight_sums.row(chunk),
                               bias_sums.row(chunk));
      }
    }
  });
  result.dweight = weight_sums.total(weight, weight);
  result.dbias = bias_sums.total(bias, bias);
  return result;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_cpu(const Tensor& x, const Tensor& weight,
                                                  const Tensor& bias, double eps) {
  const GroupedRows rows = check_rows("layer_norm", x, {{"weight", weight}, {"bias", bias}});
  Result r;
  dispatch_float("layer_norm", x.scalar_type(), [&](auto element, auto acc) {
    r = forward<decltype(element), decltype(acc)>(rows, x, std::nullopt, weight, bias, eps);
  });
  return {r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_cpu(const Tensor& dy, const Tensor& x,
                                                           const Tensor& mean, const Tensor& rstd,
                                                           const Tensor& weight,
                                                           const Tensor& bias) {
  constexpr const char* kOp = "layer_norm_backward";
  const GroupedRows rows = check_rows(kOp, x, {{"weight", weight}, {"bias", bias}});
  check_like(kOp, "dy", dy, x);
  Gradients g;
  dispatch_float(kOp, x.scalar_type(), [&](auto element, auto acc) {
    g = backward<decltype(element), decltype(acc)>(rows, std::nullopt, dy, x, mean, rstd, weight,
                                                   bias);
  });
  return {g.dh, g.dweight, g.dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_cpu(const Tensor& h, const Tensor& branch,
                                                              const Tensor& weight,
                                                              const Tensor& bias, double eps) {
  const GroupedRows rows = check_rows("add_layer_norm", h, {{"weight", weight}, {"bias", bias}});
  check_like("add_layer_norm", "branch", branch, h);
  Result r;
  dispatch_float("add_layer_norm", h.scalar_type(), [&](auto element, auto acc) {
    r = forward<decltype(element), decltype(acc)>(rows, h, branch, weight, bias, eps);
  });
  return {r.h_out, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward_cpu(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out, const Tensor& mean,
    const Tensor& rstd, const Tensor& weight, const Tensor& bias) {
  constexpr const char* kOp = "add_layer_norm_backward";
  const GroupedRows rows = check_rows(kOp, h_out, {{"weight", weight}, {"bias", bias}});
  check_like(kOp, "dy", dy, h_out);
  if (dh_out.has_value()) check_like(kOp, "dh_out", *dh_out, h_out);
  Gradients g;
  dispatch_float(kOp, h_out.scalar_type(), [&](auto element, auto acc) {
    g = backward<decltype(element), decltype(acc)>(rows, dh_out, dy, h_out, mean, rstd, weight,
                                                   bias);
  });
  return {g.dh, g.dweight, g.dbias};
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("layer_norm", layer_norm_cpu);
  m.impl("layer_norm_backward", layer_norm_backward_cpu);
  m.impl("add_layer_norm", add_layer_norm_cpu);
  m.impl("add_layer_norm_backward", add_layer_norm_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
