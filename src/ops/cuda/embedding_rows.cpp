// CUDA launches of embedding_rows: check, allocate, call the kernel on the current stream.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>

#include "kernels/embedding/embedding_rows.h"
#include "ops/cuda/launch.h"
#include "ops/embedding_rows_check.h"

namespace longship::ops {
namespace {

at::Tensor embedding_rows_cuda(const at::Tensor& weight, const at::Tensor& ids, double scale,
                               int64_t /*pad_id*/, const std::optional<at::Tensor>& /*grad_rows*/,
                               const std::optional<at::Tensor>& /*row_flags*/) {
  check_embedding_rows(weight, ids);
  const c10::cuda::CUDAGuard guard(weight.device());
  at::Tensor y = at::empty({ids.size(0), weight.size(1)}, weight.options());
  kernels::EmbeddingRowsArgs args;
  args.weight = weight.const_data_ptr();
  args.ids = ids.const_data_ptr<int64_t>();
  args.y = y.mutable_data_ptr();
  args.num_ids = ids.size(0);
  args.vocab = weight.size(0);
  args.width = weight.size(1);
  args.scale = static_cast<float>(scale);
  args.element = element_of("embedding_rows", weight);
  check_launch("embedding_rows",
               kernels::embedding_rows_forward(args, c10::cuda::getCurrentCUDAStream()));
  return y;
}

void embedding_rows_backward_cuda(const at::Tensor& dy, const at::Tensor& ids, double scale,
                                  int64_t pad_id, const at::Tensor& grad_rows,
                                  const at::Tensor& row_flags) {
  check_embedding_rows_backward(dy, ids, grad_rows, row_flags);
  const c10::cuda::CUDAGuard guard(dy.device());
  at::Tensor workspace =
      at::empty({kernels::embedding_rows_workspace(ids.size(0))}, dy.options().dtype(at::kInt));
  kernels::EmbeddingRowsBackwardArgs args;
  args.dy = dy.const_data_ptr();
  args.ids = ids.const_data_ptr<int64_t>();
  args.grad_rows = grad_rows.mutable_data_ptr();
  args.row_flags = row_flags.mutable_data_ptr<uint8_t>();
  args.workspace = workspace.mutable_data_ptr<int32_t>();
  args.num_ids = ids.size(0);
  args.vocab = grad_rows.size(0);
  args.width = grad_rows.size(1);
  args.pad_id = pad_id;
  args.scale = static_cast<float>(scale);
  args.element = element_of("embedding_rows_backward", dy);
  args.grad_element = element_of("embedding_rows_backward", grad_rows);
  check_launch("embedding_rows_backward",
               kernels::embedding_rows_backward(args, c10::cuda::getCurrentCUDAStream()));
}

TORCH_LIBRARY_IMPL(longship, CUDA, m) {
  m.impl("embedding_rows", embedding_rows_cuda);
  m.impl("embedding_rows_backward", embedding_rows_backward_cuda);
}

}  // namespace
}  // namespace longship::ops
