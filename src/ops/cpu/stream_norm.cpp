// CPU implementations of stream_norm, add_stream_norm and add_dropped: the oracles of the CUDA
// kernels. Branches are composed of library operators, one rounding after the other.
#include "ops/stream_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>

#include "ops/cpu/layer_norm_rows.h"
#include "ops/cpu/norm_rows.h"
#include "ops/dropout.h"
#include "ops/stream_norm_check.h"

namespace longship::ops {
namespace {

using cpu::ChunkSums;
using cpu::GroupRows;
using cpu::RowChunks;
using Tensor = at::Tensor;

constexpr int64_t kGrain = 16;

/// fn(T{}, G{}, Acc{}) with the types of stream, product and arithmetic.
template <class Fn>
void dispatch_stream(const char* op, at::ScalarType stream, at::ScalarType product, Fn&& fn) {
  dispatch_float(op, stream, [&]<class T, class Acc>(T, Acc) {
    if constexpr (std::is_same_v<T, double>) {
      fn(T{}, double{}, Acc{});
    } else {
      product == at::kFloat ? fn(T{}, float{}, Acc{}) : fn(T{}, at::BFloat16{}, Acc{});
    }
  });
}

/// values + bias and its dropouts, each rounded to the dtype of values.
Tensor dropped(const BranchArguments& branch) {
  Tensor v = *branch.values;
  if (branch.bias.has_value()) {
    const at::ScalarType wide = acc_type_of(v.scalar_type());
    v = (v.to(wide) + branch.bias->to(wide)).to(v.scalar_type());
  }
  for (const int64_t site : branch.sites) v = dropout(v, *branch.keys, site, branch.p);
  return v;
}

/// The gradient of values, and of the bias or [0].
std::tuple<Tensor, Tensor> branch_gradients(const BranchArguments& branch, const Tensor& dh,
                                            at::ScalarType dtype) {
  Tensor g = dh.to(dtype);
  for (size_t i = branch.sites.size(); i > 0; --i) {
    g = dropout(g, *branch.keys, branch.sites[i - 1], branch.p);
  }
  // Of a fresh tensor: g may be dh itself.
  if (g.is_same(dh)) g = dh.clone();
  if (!branch.bias.has_value()) return {g, at::empty({0}, g.options())};
  const Tensor sum = g.reshape({-1, dh.size(-1)}).sum(at::IntArrayRef{0}, false, at::kDouble);
  return {g, sum.to(branch.bias->scalar_type())};
}

Tensor add(const Tensor& h, const BranchArguments& branch) {
  const at::ScalarType wide = acc_type_of(h.scalar_type());
  return (h.to(wide) + dropped(branch).to(wide)).to(h.scalar_type());
}

/// Factor and shift of the rows, in the type of the arithmetic; 1 and 0 where they are absent.
template <class Acc>
struct Parameters {
  Parameters(const OptionalTensor& scale, const OptionalTensor& given_shift, bool plus_one,
             int64_t width)
      : factor(factor_of(scale, plus_one, width)),
        shift(given_shift.has_value() ? *given_shift
                                      : at::zeros({width}, at::TensorOptions(acc_type<Acc>()))) {}
  static Tensor factor_of(const OptionalTensor& scale, bool plus_one, int64_t width) {
    if (!scale.has_value()) return at::ones({width}, at::TensorOptions(acc_type<Acc>()));
    return plus_one ? *scale + 1.0 : *scale;
  }
  GroupRows<Acc> factor, shift;
};

struct Result {
  Tensor y, mean, rstd;
};

Result normalise(const char* op, const StreamRows& shape, const Tensor& x,
                 const OptionalTensor& scale, const OptionalTensor& shift, bool plus_one,
                 double eps, at::ScalarType dtype) {
  const auto statistics = x.options().dtype(accumulate_type(x));
  const auto [num_rows, num_groups, width] = shape.rows;
  Result result = {at::empty(x.sizes(), x.options().dtype(dtype)),
                   at::empty({num_rows}, statistics), at::empty({num_rows}, statistics)};
  dispatch_stream(op, x.scalar_type(), dtype, [&]<class T, class G, class Acc>(T, G, Acc) {
    const Parameters<Acc> parameters(scale, shift, plus_one, width);
    const RowChunks chunks(shape.rows);
    const T* in = x.const_data_ptr<T>();
    G* y = result.y.mutable_data_ptr<G>();
    Acc* mean = result.mean.mutable_data_ptr<Acc>();
    Acc* rstd = result.rstd.mutable_data_ptr<Acc>();
    at::parallel_for(0, num_rows, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t group = row / chunks.rows_per_group;
        cpu::normalise_row(in + row * shape.rows.width, parameters.factor.row(group),
                           parameters.shift.row(group), eps, y + row * shape.rows.width, mean[row],
                           rstd[row], shape.rows.width);
      }
    });
  });
  return result;
}

std::tuple<Tensor, Tensor, Tensor> norm_gradients(const char* op, const StreamRows& shape,
                                                  const OptionalTensor& dh_out, const Tensor& dy,
                                                  const Tensor& x, const Tensor& mean,
                                                  const Tensor& rstd, const OptionalTensor& scale,
                                                  const OptionalTensor& shift, bool plus_one) {
  Tensor dh = at::empty_like(x), dscale, dshift;
  dispatch_stream(
      op, x.scalar_type(), dy.scalar_type(), [&]<class T, class G, class Acc>(T, G, Acc) {
        const int64_t width = shape.rows.width;
        const Parameters<Acc> parameters(scale, shift, plus_one, width);
        const cpu::NormGradientData<T, G, Acc> data = {
            dh_out.has_value() ? dh_out->const_data_ptr<T>() : nullptr,
            dy.const_data_ptr<G>(),
            x.const_data_ptr<T>(),
            mean.const_data_ptr<Acc>(),
            rstd.const_data_ptr<Acc>(),
            dh.mutable_data_ptr<T>()};
        const RowChunks chunks(shape.rows);
        ChunkSums<Acc> scale_sums(chunks, width), shift_sums(chunks, width);
        at::parallel_for(0, chunks.num_chunks, 1, [&](int64_t begin, int64_t end) {
          for (int64_t chunk = begin; chunk < end; ++chunk) {
            for (int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
              cpu::norm_gradient_row(data, row, width, parameters.factor.row(chunks.group(chunk)),
                                     scale_sums.row(chunk), shift_sums.row(chunk));
            }
          }
        });
        dscale = scale_sums.total(scale, x);
        dshift = shift_sums.total(shift, x);
      });
  return {dh, dscale, dshift};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> stream_norm_cpu(const Tensor& h,
                                                           const OptionalTensor& scale,
                                                           const OptionalTensor& shift,
                                                           bool plus_one, double eps,
                                                           at::ScalarType dtype) {
  const StreamRows shape = check_stream_norm("stream_norm", h, scale, shift, dtype);
  Result r = normalise("stream_norm", shape, h, scale, shift, plus_one, eps, dtype);
  return {h, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> stream_norm_backward_cpu(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h, const Tensor& mean,
    const Tensor& rstd, const OptionalTensor& scale, const OptionalTensor& shift, bool plus_one) {
  constexpr const char* kOp = "stream_norm_backward";
  const StreamRows shape = check_stream_norm(kOp, h, scale, shift, dy.scalar_type());
  check_rows_like(kOp, "dy", dy, h, dy.scalar_type());
  if (dh_out.has_value()) check_rows_like(kOp, "dh_out", *dh_out, h, h.scalar_type());
  return norm_gradients(kOp, shape, dh_out, dy, h, mean, rstd, scale, shift, plus_one);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_stream_norm_cpu(
    const Tensor& h, const Tensor& values, const OptionalTensor& bias, const OptionalTensor& keys,
    at::IntArrayRef sites, double p, const OptionalTensor& scale, const OptionalTensor& shift,
    bool plus_one, double eps) {
  constexpr const char* kOp = "add_stream_norm";
  const BranchArguments branch{values, bias, keys, sites, p};
  const StreamRows shape =
      check_add_stream_norm(kOp, h, branch, scale, shift, values.scalar_type());
  const Tensor x = add(h, branch);
  Result r = normalise(kOp, shape, x, scale, shift, plus_one, eps, values.scalar_type());
  return {x, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_stream_norm_backward_cpu(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out, const Tensor& mean,
    const Tensor& rstd, const OptionalTensor& bias, const OptionalTensor& keys,
    at::IntArrayRef sites, double p, const OptionalTensor& scale, const OptionalTensor& shift,
    bool plus_one) {
  constexpr const char* kOp = "add_stream_norm_backward";
  const BranchArguments branch{std::nullopt, bias, keys, sites, p};
  const StreamRows shape =
      check_add_stream_norm(kOp, h_out, branch, scale, shift, dy.scalar_type());
  check_rows_like(kOp, "dy", dy, h_out, dy.scalar_type());
  if (dh_out.has_value()) check_rows_like(kOp, "dh_out", *dh_out, h_out, h_out.scalar_type());
  auto [dh, dscale, dshift] =
      norm_gradients(kOp, shape, dh_out, dy, h_out, mean, rstd, scale, shift, plus_one);
  auto [dbranch, dbias] = branch_gradients(branch, dh, dy.scalar_type());
  return {dh, dbranch, dbias, dscale, dshift};
}

Tensor add_dropped_cpu(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                       const OptionalTensor& keys, at::IntArrayRef sites, double p) {
  const BranchArguments branch{values, bias, keys, sites, p};
  check_add_stream_norm("add_dropped", h, branch, {}, {}, values.scalar_type());
  return add(h, branch);
}

std::tuple<Tensor, Tensor> add_dropped_backward_cpu(const Tensor& dh_out,
                                                    const OptionalTensor& bias,
                                                    const OptionalTensor& keys,
                                                    at::IntArrayRef sites, double p,
                                                    at::ScalarType dtype) {
  const BranchArguments branch{std::nullopt, bias, keys, sites, p};
  check_add_stream_norm("add_dropped_backward", dh_out, branch, {}, {}, dtype);
  return branch_gradients(branch, dh_out, dtype);
}

TORCH_LIBRARY_IMPL(longship, CPU, m) {
  m.impl("stream_norm", stream_norm_cpu);
  m.impl("stream_norm_backward", stream_norm_backward_cpu);
  m.impl("add_stream_norm", add_stream_norm_cpu);
  m.impl("add_stream_norm_backward", add_stream_norm_backward_cpu);
  m.impl("add_dropped", add_dropped_cpu);
  m.impl("add_dropped_backward", add_dropped_backward_cpu);
}

}  // namespace
}  // namespace longship::ops
