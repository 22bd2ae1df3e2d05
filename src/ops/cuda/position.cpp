// CUDA launches of rope_qkv, head_norm_rope, zero_tail_ and permute_rows: check, allocate, call the
// kernel on the current stream.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "kernels/rope/head_norm_rope.h"
#include "kernels/rope/rope_qkv.h"
#include "kernels/rope/rows.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/norm_args.h"
#include "ops/position_check.h"
#include "ops/tensor_check.h"

namespace longship::ops {
namespace {

kernels::RopeQkvShape kernel_shape(const char* op, const RopeQkvSizes& sizes,
                                   const at::Tensor& like, const at::Tensor& cos,
                                   const at::Tensor& sin, const at::Tensor& positions,
                                   const std::optional<at::Tensor>& rows_valid) {
  check_dtype(op, {"cos", cos}, at::kFloat);
  check_dtype(op, {"sin", sin}, at::kFloat);
  check_devices(op, {{"qkv", like}, {"cos", cos}, {"sin", sin}, {"positions", positions}});
  if (rows_valid.has_value()) check_devices(op, {{"qkv", like}, {"rows_valid", *rows_valid}});
  kernels::RopeQkvShape shape;
  shape.cos = cos.const_data_ptr<float>();
  shape.sin = sin.const_data_ptr<float>();
  shape.positions = positions.const_data_ptr<int32_t>();
  shape.rows_valid = rows_valid.has_value() ? rows_valid->const_data_ptr<int32_t>() : nullptr;
  shape.num_rows = sizes.num_rows;
  shape.num_heads = sizes.num_heads;
  shape.num_kv_heads = sizes.num_kv_heads;
  shape.head_dim = sizes.head_dim;
  shape.element = element_of(op, like);
  return shape;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> rope_qkv_cuda(
    const at::Tensor& qkv, const at::Tensor& cos, const at::Tensor& sin,
    const at::Tensor& positions, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
    const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes sizes = check_rope_tables("rope_qkv", cos, sin, positions, num_heads,
                                               num_kv_heads, head_dim, rows_valid);
  check_sizes("rope_qkv", {"qkv", qkv}, {sizes.num_rows, sizes.row_width()});
  check_contiguous("rope_qkv", {{"qkv", qkv}});
  const c10::cuda::CUDAGuard guard(qkv.device());
  at::Tensor q = at::empty({sizes.num_rows, num_heads, head_dim}, qkv.options());
  at::Tensor k = at::empty({sizes.num_rows, num_kv_heads, head_dim}, qkv.options());
  at::Tensor v = at::empty({sizes.num_rows, num_kv_heads, head_dim}, qkv.options());
  kernels::RopeQkvArgs args;
  args.shape = kernel_shape("rope_qkv", sizes, qkv, cos, sin, positions, rows_valid);
  args.qkv = qkv.const_data_ptr();
  args.q = q.mutable_data_ptr();
  args.k = k.mutable_data_ptr();
  args.v = v.mutable_data_ptr();
  check_launch("rope_qkv", kernels::rope_qkv_forward(args, c10::cuda::getCurrentCUDAStream()));
  return {q, k, v};
}

/// Views with consecutive columns are read as they are; anything else is copied into `keep`.
kernels::RopeHeads kernel_heads(const std::optional<at::Tensor>& gradient, at::Tensor& keep) {
  kernels::RopeHeads heads;
  if (!gradient.has_value()) return heads;
  keep = gradient->size(-1) <= 1 || gradient->stride(-1) == 1 ? *gradient : gradient->contiguous();
  heads.data = keep.const_data_ptr();
  heads.row_stride = keep.stride(0);
  heads.head_stride = keep.stride(1);
  return heads;
}

at::Tensor rope_qkv_backward_cuda(const std::optional<at::Tensor>& dq,
                                  const std::optional<at::Tensor>& dk,
                                  const std::optional<at::Tensor>& dv, const at::Tensor& cos,
                                  const at::Tensor& sin, const at::Tensor& positions,
                                  int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                                  const std::optional<at::Tensor>& rows_valid) {
  const RopeQkvSizes sizes = check_rope_tables("rope_qkv_backward", cos, sin, positions, num_heads,
                                               num_kv_heads, head_dim, rows_valid);
  const at::Tensor like = check_rope_gradients("rope_qkv_backward", sizes, dq, dk, dv);
  const c10::cuda::CUDAGuard guard(like.device());
  at::Tensor d_qkv = at::empty({sizes.num_rows, sizes.row_width()}, like.options());
  at::Tensor keep[3];
  kernels::RopeQkvBackwardArgs args;
  args.shape = kernel_shape("rope_qkv_backward", sizes, like, cos, sin, positions, rows_valid);
  args.dq = kernel_heads(dq, keep[0]);
  args.dk = kernel_heads(dk, keep[1]);
  args.dv = kernel_heads(dv, keep[2]);
  args.d_qkv = d_qkv.mutable_data_ptr();
  check_launch("rope_qkv_backward",
               kernels::rope_qkv_backward(args, c10::cuda::getCurrentCUDAStream()));
  return d_qkv;
}

kernels::HeadNormRopeShape kernel_shape(const char* op, const RopeQkvSizes& sizes,
                                        const at::Tensor& qkv, const at::Tensor& q_weight,
                                        const at::Tensor& k_weight, const at::Tensor& cos,
                                        const at::Tensor& sin, double eps) {
  kernels::HeadNormRopeShape shape;
  shape.qkv = qkv.const_data_ptr();
  shape.q_weight = cuda::param_rows(op, "q_weight", q_weight);
  shape.k_weight = cuda::param_rows(op, "k_weight", k_weight);
  shape.cos = cuda::param_rows(op, "cos", cos);
  shape.sin = cuda::param_rows(op, "sin", sin);
  // Every row has angles of its own, also where there is but one.
  shape.cos.row_stride = shape.sin.row_stride = sizes.head_dim / 2;
  shape.num_rows = sizes.num_rows;
  shape.num_heads = sizes.num_heads;
  shape.num_kv_heads = sizes.num_kv_heads;
  shape.head_dim = sizes.head_dim;
  shape.eps = static_cast<float>(eps);
  shape.element = element_of(op, qkv);
  return shape;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope_cuda(
    const at::Tensor& qkv, const at::Tensor& q_weight, const at::Tensor& k_weight,
    const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads, int64_t num_kv_heads,
    double eps) {
  constexpr const char* kOp = "head_norm_rope";
  const RopeQkvSizes sizes =
      check_head_norm_rope(kOp, qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads);
  const c10::cuda::CUDAGuard guard(qkv.device());
  at::Tensor q = at::empty({sizes.num_rows, num_heads, sizes.head_dim}, qkv.options());
  at::Tensor k = at::empty({sizes.num_rows, num_kv_heads, sizes.head_dim}, qkv.options());
  kernels::HeadNormRopeArgs args;
  args.shape = kernel_shape(kOp, sizes, qkv, q_weight, k_weight, cos, sin, eps);
  args.q = q.mutable_data_ptr();
  args.k = k.mutable_data_ptr();
  check_launch(kOp, kernels::head_norm_rope_forward(args, c10::cuda::getCurrentCUDAStream()));
  return {q, k, value_heads(qkv, sizes)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> head_norm_rope_backward_cuda(
    const std::optional<at::Tensor>& dq, const std::optional<at::Tensor>& dk,
    const std::optional<at::Tensor>& dv, const at::Tensor& qkv, const at::Tensor& q_weight,
    const at::Tensor& k_weight, const at::Tensor& cos, const at::Tensor& sin, int64_t num_heads,
    int64_t num_kv_heads, double eps) {
  constexpr const char* kOp = "head_norm_rope_backward";
  const RopeQkvSizes sizes =
      check_head_norm_rope(kOp, qkv, q_weight, k_weight, cos, sin, num_heads, num_kv_heads);
  const at::Tensor like = check_rope_gradients(kOp, sizes, dq, dk, dv);
  check_dtype(kOp, {"the gradients", like}, qkv.scalar_type());
  check_devices(kOp, {{"qkv", qkv}, {"the gradients", like}});
  const c10::cuda::CUDAGuard guard(qkv.device());
  at::Tensor d_qkv = at::empty_like(qkv);
  at::Tensor dq_weight = at::empty_like(q_weight), dk_weight = at::empty_like(k_weight);
  at::Tensor keep[3];
  kernels::HeadNormRopeBackwardArgs args;
  args.shape = kernel_shape(kOp, sizes, qkv, q_weight, k_weight, cos, sin, eps);
  args.dq = kernel_heads(dq, keep[0]);
  args.dk = kernel_heads(dk, keep[1]);
  args.dv = kernel_heads(dv, keep[2]);
  args.d_qkv = d_qkv.mutable_data_ptr();
  args.dq_weight = cuda::param_gradient(q_weight, dq_weight);
  args.dk_weight = cuda::param_gradient(k_weight, dk_weight);
  const at::Tensor scratch =
      cuda::workspace(kernels::head_norm_rope_backward_workspace_bytes(args), qkv);
  args.workspace = scratch.defined() ? static_cast<float*>(scratch.mutable_data_ptr()) : nullptr;
  check_launch(kOp, kernels::head_norm_rope_backward(args, c10::cuda::getCurrentCUDAStream()));
  return {d_qkv, dq_weight, dk_weight};
}

int64_t row_bytes(const at::Tensor& x) {
  int64_t bytes = static_cast<int64_t>(x.element_size());
  for (int64_t d = 1; d < x.dim(); ++d) bytes *= x.size(d);
  return bytes;
}

void zero_tail_cuda(const at::Tensor& x, const at::Tensor& rows_valid) {
  check_zero_tail(x, rows_valid);
  const c10::cuda::CUDAGuard guard(x.device());
  kernels::ZeroTailArgs args;
  args.x = x.mutable_data_ptr();
  args.rows_valid = rows_valid.const_data_ptr<int32_t>();
  args.num_rows = x.size(0);
  args.row_bytes = row_bytes(x);
  check_launch("zero_tail_", kernels::zero_tail(args, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor gather(const char* op, const at::Tensor& x, const at::Tensor& index) {
  const c10::cuda::CUDAGuard guard(x.device());
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = index.size(0);
  at::Tensor y = at::empty(sizes, x.options());
  kernels::GatherRowsArgs args;
  args.x = x.const_data_ptr();
  args.index = index.const_data_ptr<int64_t>();
  args.y = y.mutable_data_ptr();
  args.num_out = index.size(0);
  args.row_bytes = row_bytes(x);
  check_launch(op, kernels::gather_rows(args, c10::cuda::getCurrentCUDAStream()));
  return y;
}

at::Tensor permute_rows_cuda(const at::Tensor& x, const at::Tensor& index,
                             const at::Tensor& inverse) {
  check_permute_rows(x, index, inverse);
  return gather("permute_rows", x, index);
}

at::Tensor permute_rows_backward_cuda(const at::Tensor& dy, const at::Tensor& inverse) {
  check_gather_rows("permute_rows_backward", dy, inverse);
  return gather("permute_rows_backward", dy, inverse);
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("rope_qkv", rope_qkv_cuda);
  m.impl("rope_qkv_backward", rope_qkv_backward_cuda);
  m.impl("head_norm_rope", head_norm_rope_cuda);
  m.impl("head_norm_rope_backward", head_norm_rope_backward_cuda);
  m.impl("zero_tail_", zero_tail_cuda);
  m.impl("permute_rows", permute_rows_cuda);
  m.impl("permute_rows_backward", permute_rows_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
