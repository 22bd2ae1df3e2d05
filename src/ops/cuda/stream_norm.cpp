// CUDA launches of stream_norm, add_stream_norm and add_dropped: check, allocate, call the kernels
// on the current stream.
#include "kernels/layer_norm/stream_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "ops/cuda/dropout_site.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/norm_args.h"
#include "ops/stream_norm_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;

/// Pointers of a branch whose bias is `bias_row`.
kernels::StreamBranch branch_args(const char* op, const BranchArguments& branch,
                                  const StreamRows& shape, const Tensor& bias_row) {
  kernels::StreamBranch out;
  if (branch.values.has_value()) out.values = branch.values->const_data_ptr();
  out.bias = cuda::param_rows(op, "bias", bias_row);
  if (shape.sites.empty()) return out;
  out.keys = branch.keys->const_data_ptr<int64_t>();
  for (const DropoutPlan& plan : shape.sites) out.sites[out.num_sites++] = dropout_site(plan);
  return out;
}

float* floats(const Tensor& scratch) {
  return scratch.defined() ? static_cast<float*>(scratch.mutable_data_ptr()) : nullptr;
}

struct NormParameters {
  const OptionalTensor& scale;
  const OptionalTensor& shift;
  bool plus_one;
};

struct Result {
  Tensor h_out, y, mean, rstd;
};

/// Normalises h, or h and its branch written to h_out where the branch has values.
Result forward(const char* op, const StreamRows& shape, const Tensor& h,
               const BranchArguments& branch, const NormParameters& norm, double eps,
               at::ScalarType dtype) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Tensor scale = cuda::readable(norm.scale), shift = cuda::readable(norm.shift);
  const Tensor bias = cuda::readable(branch.bias);
  const auto statistics = h.options().dtype(at::kFloat);
  Result result = {h, at::empty(h.sizes(), h.options().dtype(dtype)),
                   at::empty({shape.rows.num_rows}, statistics),
                   at::empty({shape.rows.num_rows}, statistics)};
  kernels::StreamNormArgs args;
  args.h = h.const_data_ptr();
  args.branch = branch_args(op, branch, shape, bias);
  if (branch.values.has_value()) {
    result.h_out = at::empty_like(h);
    args.h_out = result.h_out.mutable_data_ptr();
  }
  args.scale = cuda::param_rows(op, "scale", scale);
  args.shift = cuda::param_rows(op, "shift", shift);
  args.plus_one = norm.plus_one;
  args.y = result.y.mutable_data_ptr();
  args.mean = result.mean.mutable_data_ptr<float>();
  args.rstd = result.rstd.mutable_data_ptr<float>();
  args.num_rows = shape.rows.num_rows;
  args.num_groups = shape.num_samples;
  args.width = shape.rows.width;
  args.eps = static_cast<float>(eps);
  args.stream = cuda::element_of(op, "h", h);
  args.product = cuda::element_of(op, "y", result.y);
  check_launch(op, kernels::stream_norm_forward(args, c10::cuda::getCurrentCUDAStream()));
  return result;
}

struct Gradients {
  Tensor dh, dbranch, dbias, dscale, dshift;
};

/// Gradients of scale and shift, side by side in one matrix where both have rows of their own for
/// each sample: most come from one product, whose gradient is then there without a copy
/// (nn::halves).
std::pair<Tensor, Tensor> new_modulation(const NormParameters& norm, const Tensor& x) {
  const bool both = norm.scale.has_value() && norm.shift.has_value() && norm.scale->dim() == 2 &&
                    norm.scale->sizes() == norm.shift->sizes() &&
                    norm.scale->scalar_type() == norm.shift->scalar_type();
  if (!both) return {cuda::new_gradient(norm.scale, x), cuda::new_gradient(norm.shift, x)};
  const int64_t width = norm.scale->size(1);
  const Tensor all = at::empty({norm.scale->size(0), 2 * width}, norm.scale->options());
  return {all.narrow(1, 0, width), all.narrow(1, width, width)};
}

/// `with_branch`: dbranch is wanted too.
Gradients backward(const char* op, const StreamRows& shape, const OptionalTensor& dh_out,
                   const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                   const BranchArguments& branch, bool with_branch, const NormParameters& norm) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor scale = cuda::readable(norm.scale);
  Gradients g;
  g.dh = at::empty_like(x);
  g.dbias = cuda::new_gradient(branch.bias, dy);
  std::tie(g.dscale, g.dshift) = new_modulation(norm, x);
  kernels::StreamNormBackwardArgs args;
  args.dh_out = dh_out.has_value() ? dh_out->const_data_ptr() : nullptr;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  args.mean = mean.const_data_ptr<float>();
  args.rstd = rstd.const_data_ptr<float>();
  args.scale = cuda::param_rows(op, "scale", scale);
  args.plus_one = norm.plus_one;
  args.branch = branch_args(op, branch, shape, Tensor());
  args.dh = g.dh.mutable_data_ptr();
  if (with_branch) {
    g.dbranch = at::empty_like(dy);
    args.dbranch = g.dbranch.mutable_data_ptr();
    args.dbias = cuda::param_gradient(branch.bias, g.dbias);
  }
  args.dscale = cuda::param_gradient(norm.scale, g.dscale);
  args.dshift = cuda::param_gradient(norm.shift, g.dshift);
  args.num_rows = shape.rows.num_rows;
  args.num_groups = shape.num_samples;
  args.width = shape.rows.width;
  args.stream = cuda::element_of(op, "h", x);
  args.product = cuda::element_of(op, "dy", dy);
  const Tensor scratch = cuda::workspace(kernels::stream_norm_backward_workspace_bytes(args), x);
  args.workspace = floats(scratch);
  check_launch(op, kernels::stream_norm_backward(args, c10::cuda::getCurrentCUDAStream()));
  return g;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> stream_norm_cuda(const Tensor& h,
                                                            const OptionalTensor& scale,
                                                            const OptionalTensor& shift,
                                                            bool plus_one, double eps,
                                                            at::ScalarType dtype) {
  constexpr const char* kOp = "stream_norm";
  const StreamRows shape = check_stream_norm(kOp, h, scale, shift, dtype);
  Result r = forward(kOp, shape, h, {}, {scale, shift, plus_one}, eps, dtype);
  return {r.h_out, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor> stream_norm_backward_cuda(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h, const Tensor& mean,
    const Tensor& rstd, const OptionalTensor& scale, const OptionalTensor& shift, bool plus_one) {
  constexpr const char* kOp = "stream_norm_backward";
  const StreamRows shape = check_stream_norm(kOp, h, scale, shift, dy.scalar_type());
  check_rows_like(kOp, "dy", dy, h, dy.scalar_type());
  if (dh_out.has_value()) check_rows_like(kOp, "dh_out", *dh_out, h, h.scalar_type());
  const Gradients g =
      backward(kOp, shape, dh_out, dy, h, mean, rstd, {}, false, {scale, shift, plus_one});
  return {g.dh, g.dscale, g.dshift};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_stream_norm_cuda(
    const Tensor& h, const Tensor& values, const OptionalTensor& bias, const OptionalTensor& keys,
    at::IntArrayRef sites, double p, const OptionalTensor& scale, const OptionalTensor& shift,
    bool plus_one, double eps) {
  constexpr const char* kOp = "add_stream_norm";
  const BranchArguments branch{values, bias, keys, sites, p};
  const StreamRows shape =
      check_add_stream_norm(kOp, h, branch, scale, shift, values.scalar_type());
  Result r = forward(kOp, shape, h, branch, {scale, shift, plus_one}, eps, values.scalar_type());
  return {r.h_out, r.y, r.mean, r.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_stream_norm_backward_cuda(
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
  const Gradients g =
      backward(kOp, shape, dh_out, dy, h_out, mean, rstd, branch, true, {scale, shift, plus_one});
  return {g.dh, g.dbranch, g.dbias, g.dscale, g.dshift};
}

Tensor add_dropped_cuda(const Tensor& h, const Tensor& values, const OptionalTensor& bias,
                        const OptionalTensor& keys, at::IntArrayRef sites, double p) {
  constexpr const char* kOp = "add_dropped";
  const BranchArguments branch{values, bias, keys, sites, p};
  const StreamRows shape = check_add_stream_norm(kOp, h, branch, {}, {}, values.scalar_type());
  const c10::cuda::CUDAGuard guard(h.device());
  const Tensor bias_row = cuda::readable(bias);
  Tensor out = at::empty_like(h);
  kernels::AddDroppedArgs args;
  args.h = h.const_data_ptr();
  args.branch = branch_args(kOp, branch, shape, bias_row);
  args.out = out.mutable_data_ptr();
  args.num_rows = shape.rows.num_rows;
  args.num_groups = shape.num_samples;
  args.width = shape.rows.width;
  args.stream = cuda::element_of(kOp, "h", h);
  args.product = cuda::element_of(kOp, "branch", values);
  check_launch(kOp, kernels::add_dropped_forward(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

std::tuple<Tensor, Tensor> add_dropped_backward_cuda(const Tensor& dh_out,
                                                     const OptionalTensor& bias,
                                                     const OptionalTensor& keys,
                                                     at::IntArrayRef sites, double p,
                                                     at::ScalarType dtype) {
  constexpr const char* kOp = "add_dropped_backward";
  const BranchArguments branch{std::nullopt, bias, keys, sites, p};
  const StreamRows shape = check_add_stream_norm(kOp, dh_out, branch, {}, {}, dtype);
  const c10::cuda::CUDAGuard guard(dh_out.device());
  Tensor dbranch = at::empty(dh_out.sizes(), dh_out.options().dtype(dtype));
  Tensor dbias = cuda::new_gradient(bias, dbranch);
  kernels::AddDroppedBackwardArgs args;
  args.dout = dh_out.const_data_ptr();
  args.branch = branch_args(kOp, branch, shape, Tensor());
  args.dbranch = dbranch.mutable_data_ptr();
  args.dbias = cuda::param_gradient(bias, dbias);
  args.num_rows = shape.rows.num_rows;
  args.num_groups = shape.num_samples;
  args.width = shape.rows.width;
  args.stream = cuda::element_of(kOp, "dh_out", dh_out);
  args.product = cuda::element_of(kOp, "dbranch", dbranch);
  const Tensor scratch =
      cuda::workspace(kernels::add_dropped_backward_workspace_bytes(args), dh_out);
  args.workspace = floats(scratch);
  check_launch(kOp, kernels::add_dropped_backward(args, c10::cuda::getCurrentCUDAStream()));
  return {dbranch, dbias};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("stream_norm", stream_norm_cuda);
  m.impl("stream_norm_backward", stream_norm_backward_cuda);
  m.impl("add_stream_norm", add_stream_norm_cuda);
  m.impl("add_stream_norm_backward", add_stream_norm_backward_cuda);
  m.impl("add_dropped", add_dropped_cuda);
  m.impl("add_dropped_backward", add_dropped_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
