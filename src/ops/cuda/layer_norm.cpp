// CUDA launches of layer_norm and add_layer_norm: check, allocate, call the kernels on the current
// stream.
#include "kernels/layer_norm/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "ops/cuda/launch.h"
#include "ops/cuda/norm_args.h"
#include "ops/norm_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

struct Result {
  Tensor h_out, y, mean, rstd;
};

/// Normalises h, or h + branch written to h_out where there is a branch.
Result forward(const char* op, const GroupedRows& rows, const Tensor& h,
               const OptionalTensor& branch, const Tensor& weight, const Tensor& bias, double eps) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Tensor weight_row = cuda::readable(weight);
  const Tensor bias_row = cuda::readable(bias);
  const auto statistics = h.options().dtype(at::kFloat);
  Result result = {branch.has_value() ? at::empty_like(h) : Tensor(), at::empty_like(h),
                   at::empty({rows.num_rows}, statistics), at::empty({rows.num_rows}, statistics)};
  kernels::LayerNormArgs args;
  args.element = cuda::element_of(op, "x", h);
  args.h = h.const_data_ptr();
  if (branch.has_value()) {
    args.branch = branch->const_data_ptr();
    args.h_out = result.h_out.mutable_data_ptr();
  }
  args.weight = cuda::param_rows(op, "weight", weight_row);
  args.bias = cuda::param_rows(op, "bias", bias_row);
  args.y = result.y.mutable_data_ptr();
  args.mean = result.mean.mutable_data_ptr<float>();
  args.rstd = result.rstd.mutable_data_ptr<float>();
  args.num_rows = rows.num_rows;
  args.width = rows.width;
  args.eps = static_cast<float>(eps);
  check_launch(op, kernels::layer_norm_forward(args, c10::cuda::getCurrentCUDAStream()));
  return result;
}

struct Gradients {
  Tensor dh, dweight, dbias;
};

Gradients backward(const char* op, const GroupedRows& rows, const OptionalTensor& dh_out,
                   const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                   const Tensor& weight, const Tensor& bias) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor weight_row = cuda::readable(weight);
  Gradients g = {at::empty_like(x), cuda::new_gradient(weight, weight),
                 cuda::new_gradient(bias, weight)};
  kernels::LayerNormBackwardArgs args;
  args.element = cuda::element_of(op, "x", x);
  args.dh_out = dh_out.has_value() ? dh_out->const_data_ptr() : nullptr;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  args.weight = cuda::param_rows(op, "weight", weight_row);
  cuda::element_of(op, "bias", bias);
  args.mean = mean.const_data_ptr<float>();
  args.rstd = rstd.const_data_ptr<float>();
  args.dh = g.dh.mutable_data_ptr();
  args.dweight = cuda::param_gradient(weight, g.dweight);
  args.dbias = cuda::param_gradient(bias, g.dbias);
  args.num_rows = rows.num_rows;
  args.width = rows.width;
  const Tensor scratch = cuda::workspace(kernels::layer_norm_backward_workspace_bytes(args), x);
  args.workspace = scratch.defined() ? static_cast<float*>(scratch.mutable_data_ptr()) : nullptr;
  check_launch(op, kernels::layer_norm_backward(args, c10::cuda::getCurrentCUDAStream()));
  return g;
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_cuda(const Tensor& x, const Tensor& weight,
                                                   const Tensor& bias, double eps) {
  const GroupedRows rows = check_rows("layer_norm", x, {{"weight", weight}, {"bias", bias}});
  Result r = forward("layer_norm", rows, x, std::nullopt, weight, bias, eps);
  return {r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward_cuda(const Tensor& dy, const Tensor& x,
                                                            const Tensor& mean, const Tensor& rstd,
                                                            const Tensor& weight,
                                                            const Tensor& bias) {
  constexpr const char* kOp = "layer_norm_backward";
  const GroupedRows rows = check_rows(kOp, x, {{"weight", weight}, {"bias", bias}});
  check_like(kOp, "dy", dy, x);
  const Gradients g = backward(kOp, rows, std::nullopt, dy, x, mean, rstd, weight, bias);
  return {g.dh, g.dweight, g.dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm_cuda(const Tensor& h,
                                                               const Tensor& branch,
                                                               const Tensor& weight,
                                                               const Tensor& bias, double eps) {
  const GroupedRows rows = check_rows("add_layer_norm", h, {{"weight", weight}, {"bias", bias}});
  check_like("add_layer_norm", "branch", branch, h);
  Result r = forward("add_layer_norm", rows, h, branch, weight, bias, eps);
  return {r.h_out, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward_cuda(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out, const Tensor& mean,
    const Tensor& rstd, const Tensor& weight, const Tensor& bias) {
  constexpr const char* kOp = "add_layer_norm_backward";
  const GroupedRows rows = check_rows(kOp, h_out, {{"weight", weight}, {"bias", bias}});
  check_like(kOp, "dy", dy, h_out);
  if (dh_out.has_value()) check_like(kOp, "dh_out", *dh_out, h_out);
  const Gradients g = backward(kOp, rows, dh_out, dy, h_out, mean, rstd, weight, bias);
  return {g.dh, g.dweight, g.dbias};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("layer_norm", layer_norm_cuda);
  m.impl("layer_norm_backward", layer_norm_backward_cuda);
  m.impl("add_layer_norm", add_layer_norm_cuda);
  m.impl("add_layer_norm_backward", add_layer_norm_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
