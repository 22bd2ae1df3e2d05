#include "nn/packed_samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "nn/attention.h"
#include "nn/packed_attention.h"

namespace longship::nn {

at::Tensor packed_mask(const at::Tensor& segment_ids, bool causal, at::ScalarType dtype) {
  const int64_t rows = segment_ids.size(0);
  const at::Tensor from = segment_ids.unsqueeze(1), to = segment_ids.unsqueeze(0);
  const at::Tensor order = at::arange(rows, segment_ids.options().dtype(at::kLong));
  const at::Tensor own = order.unsqueeze(1) == order.unsqueeze(0);
  at::Tensor seen = (from == to).logical_and(from != 0);
  if (causal) seen = seen.logical_and(order.unsqueeze(0) <= order.unsqueeze(1));
  const auto options = segment_ids.options().dtype(dtype);
  return at::where(seen.logical_or(own), at::zeros({}, options), at::full({}, kMasked, options))
      .view({1, 1, rows, rows});
}

at::Tensor packed_self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const PackedSamples& samples, bool causal) {
  LS_CHECK(samples.segment_ids.dim() == 1 && samples.segment_ids.size(0) == q.size(0) &&
               k.size(0) == q.size(0) && v.size(0) == q.size(0),
           ShapeError, "packed attention: {} queries, {} keys, {} values, {} segment ids",
           q.size(0), k.size(0), v.size(0), samples.segment_ids.numel());
  if (q.is_cuda() && q.scalar_type() == at::kBFloat16) {
    return varlen_attention(q, k, v, samples.cu_seqlens, samples.cu_seqlens, samples.longest,
                            samples.longest, causal);
  }
  const at::Tensor mask = packed_mask(samples.segment_ids, causal, q.scalar_type());
  const at::Tensor out = attention(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), mask).squeeze(0);
  // A product would keep a NaN of a padding row; a choice does not.
  const at::Tensor valid = (samples.segment_ids != 0).unsqueeze(1);
  return at::where(valid, out, at::zeros({}, out.options()));
}

}  // namespace longship::nn
