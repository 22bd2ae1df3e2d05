// CUDA launches of rms_norm, add_rms_norm and add_gate: check, allocate, call the kernels on the
// current stream.
#include "kernels/rms_norm/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/rms_norm/add_gate.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/norm_args.h"
#include "ops/norm_check.h"

namespace longship::ops {
namespace {

using Tensor = at::Tensor;
using OptionalTensor = std::optional<at::Tensor>;

/// Normalises h, or h + branch * gate written to h_out where there is a branch. Returns rstd.
Tensor forward(const char* op, const GroupedRows& rows, const Tensor& h,
               const OptionalTensor& branch, const OptionalTensor& gate, const Tensor& scale,
               const OptionalTensor& shift, double eps, double offset, Tensor* h_out, Tensor& y) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Tensor gate_rows = cuda::readable(gate);
  const Tensor scale_rows = cuda::readable(scale);
  const Tensor shift_rows = cuda::readable(shift);
  Tensor rstd = at::empty({rows.num_rows}, h.options().dtype(at::kFloat));
  kernels::RmsNormArgs args;
  args.element = cuda::element_of(op, "x", h);
  args.h = h.const_data_ptr();
  if (branch.has_value()) {
    args.branch = branch->const_data_ptr();
    args.h_out = h_out->mutable_data_ptr();
  }
  args.gate = cuda::param_rows(op, "gate", gate_rows);
  args.scale = cuda::param_rows(op, "scale", scale_rows);
  args.shift = cuda::param_rows(op, "shift", shift_rows);
  args.y = y.mutable_data_ptr();
  args.rstd = rstd.mutable_data_ptr<float>();
  args.num_rows = rows.num_rows;
  args.num_groups = rows.num_groups;
  args.width = rows.width;
  args.eps = static_cast<float>(eps);
  args.offset = static_cast<float>(offset);
  check_launch(op, kernels::rms_norm_forward(args, c10::cuda::getCurrentCUDAStream()));
  return rstd;
}

struct Gradients {
  Tensor dh, dbranch, dgate, dscale, dshift;
};

Gradients backward(const char* op, const GroupedRows& rows, const OptionalTensor& dh_out,
                   const Tensor& dy, const Tensor& x, const Tensor& rstd,
                   const OptionalTensor& branch, const OptionalTensor& gate, const Tensor& scale,
                   const OptionalTensor& shift, double offset) {
  const c10::cuda::CUDAGuard guard(x.device());
  const Tensor gate_rows = cuda::readable(gate);
  const Tensor scale_rows = cuda::readable(scale);
  Gradients g;
  g.dh = at::empty_like(x);
  g.dbranch = gate.has_value() ? at::empty_like(x) : at::empty({0}, x.options());
  g.dgate = cuda::new_gradient(gate, scale);
  g.dscale = cuda::new_gradient(scale, scale);
  g.dshift = cuda::new_gradient(shift, scale);
  kernels::RmsNormBackwardArgs args;
  args.element = cuda::element_of(op, "x", x);
  args.dh_out = dh_out.has_value() ? dh_out->const_data_ptr() : nullptr;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  if (gate.has_value()) {
    args.branch = branch->const_data_ptr();
    args.dbranch = g.dbranch.mutable_data_ptr();
  }
  args.gate = cuda::param_rows(op, "gate", gate_rows);
  args.scale = cuda::param_rows(op, "scale", scale_rows);
  if (shift.has_value()) cuda::element_of(op, "shift", *shift);
  args.rstd = rstd.const_data_ptr<float>();
  args.dh = g.dh.mutable_data_ptr();
  args.dgate = cuda::param_gradient(gate, g.dgate);
  args.dscale = cuda::param_gradient(scale, g.dscale);
  args.dshift = cuda::param_gradient(shift, g.dshift);
  args.num_rows = rows.num_rows;
  args.num_groups = rows.num_groups;
  args.width = rows.width;
  args.offset = static_cast<float>(offset);
  const Tensor scratch = cuda::workspace(kernels::rms_norm_backward_workspace_bytes(args), x);
  args.workspace = scratch.defined() ? static_cast<float*>(scratch.mutable_data_ptr()) : nullptr;
  check_launch(op, kernels::rms_norm_backward(args, c10::cuda::getCurrentCUDAStream()));
  return g;
}

std::tuple<Tensor, Tensor> rms_norm_cuda(const Tensor& x, const Tensor& scale,
                                         const OptionalTensor& shift, double eps, double offset) {
  const GroupedRows rows = check_grouped_rows("rms_norm", x, {{"scale", scale}, {"shift", shift}});
  Tensor y = at::empty_like(x);
  Tensor rstd = forward("rms_norm", rows, x, std::nullopt, std::nullopt, scale, shift, eps, offset,
                        /*h_out=*/nullptr, y);
  return {y, rstd};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward_cuda(const Tensor& dy, const Tensor& x,
                                                          const Tensor& scale, const Tensor& rstd,
                                                          const OptionalTensor& shift,
                                                          double offset) {
  constexpr const char* kOp = "rms_norm_backward";
  const GroupedRows rows = check_grouped_rows(kOp, x, {{"scale", scale}, {"shift", shift}});
  check_like(kOp, "dy", dy, x);
  const Gradients g = backward(kOp, rows, std::nullopt, dy, x, rstd, std::nullopt, std::nullopt,
                               scale, shift, offset);
  return {g.dh, g.dscale, g.dshift};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_cuda(const Tensor& h, const Tensor& branch,
                                                     const OptionalTensor& gate,
                                                     const Tensor& scale,
                                                     const OptionalTensor& shift, double eps,
                                                     double offset) {
  const GroupedRows rows =
      check_grouped_rows("add_rms_norm", h, {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like("add_rms_norm", "branch", branch, h);
  Tensor h_out = at::empty_like(h);
  Tensor y = at::empty_like(h);
  Tensor rstd =
      forward("add_rms_norm", rows, h, branch, gate, scale, shift, eps, offset, &h_out, y);
  return {h_out, y, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> add_rms_norm_backward_cuda(
    const OptionalTensor& dh_out, const Tensor& dy, const Tensor& h_out, const Tensor& rstd,
    const OptionalTensor& branch, const OptionalTensor& gate, const Tensor& scale,
    const OptionalTensor& shift, double offset) {
  constexpr const char* kOp = "add_rms_norm_backward";
  const GroupedRows rows =
      check_grouped_rows(kOp, h_out, {{"gate", gate}, {"scale", scale}, {"shift", shift}});
  check_like(kOp, "dy", dy, h_out);
  if (dh_out.has_value()) check_like(kOp, "dh_out", *dh_out, h_out);
  if (gate.has_value()) check_like(kOp, "branch", branch.value(), h_out);
  const Gradients g =
      backward(kOp, rows, dh_out, dy, h_out, rstd, branch, gate, scale, shift, offset);
  return {g.dh, g.dbranch, g.dgate, g.dscale, g.dshift};
}

Tensor add_gate_cuda(const Tensor& h, const Tensor& branch, const OptionalTensor& gate) {
  const GroupedRows rows = check_grouped_rows("add_gate", h, {{"gate", gate}});
  check_like("add_gate", "branch", branch, h);
  const c10::cuda::CUDAGuard guard(h.device());
  const Tensor gate_rows = cuda::readable(gate);
  Tensor out = at::empty_like(h);
  kernels::AddGateArgs args;
  args.element = cuda::element_of("add_gate", "h", h);
  args.h = h.const_data_ptr();
  args.branch = branch.const_data_ptr();
  args.gate = cuda::param_rows("add_gate", "gate", gate_rows);
  args.out = out.mutable_data_ptr();
  args.num_rows = rows.num_rows;
  args.num_groups = rows.num_groups;
  args.width = rows.width;
  check_launch("add_gate", kernels::add_gate_forward(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

std::tuple<Tensor, Tensor> add_gate_backward_cuda(const Tensor& dout, const Tensor& branch,
                                                  const Tensor& gate) {
  constexpr const char* kOp = "add_gate_backward";
  const GroupedRows rows = check_grouped_rows(kOp, dout, {{"gate", gate}});
  check_like(kOp, "branch", branch, dout);
  const c10::cuda::CUDAGuard guard(dout.device());
  const Tensor gate_rows = cuda::readable(gate);
  Tensor dbranch = at::empty_like(branch);
  Tensor dgate = cuda::new_gradient(gate, gate);
  kernels::AddGateBackwardArgs args;
  args.element = cuda::element_of(kOp, "dout", dout);
  args.dout = dout.const_data_ptr();
  args.branch = branch.const_data_ptr();
  args.gate = cuda::param_rows(kOp, "gate", gate_rows);
  args.dbranch = dbranch.mutable_data_ptr();
  args.dgate = cuda::param_gradient(gate, dgate);
  args.num_rows = rows.num_rows;
  args.num_groups = rows.num_groups;
  args.width = rows.width;
  const Tensor scratch = cuda::workspace(kernels::add_gate_backward_workspace_bytes(args), dout);
  args.workspace = scratch.defined() ? static_cast<float*>(scratch.mutable_data_ptr()) : nullptr;
  check_launch(kOp, kernels::add_gate_backward(args, c10::cuda::getCurrentCUDAStream()));
  return {dbranch, dgate};
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("rms_norm", rms_norm_cuda);
  m.impl("rms_norm_backward", rms_norm_backward_cuda);
  m.impl("add_rms_norm", add_rms_norm_cuda);
  m.impl("add_rms_norm_backward", add_rms_norm_backward_cuda);
  m.impl("add_gate", add_gate_cuda);
  m.impl("add_gate_backward", add_gate_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
